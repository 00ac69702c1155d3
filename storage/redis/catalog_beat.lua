-- A gateway says that it is there (R14), and hears who else is. keys[1]: the hash gateway → number.
-- args: the gateway ('': none, this only forgets), then pairs: a gateway to forget, and the number
-- that it must still have. Answers {gateway, number, gateway, number …}.
act('catalog_beat', function(keys, args)
  for i = 2, #args, 2 do
    if redis.call('HGET', keys[1], args[i]) == args[i + 1] then
      redis.call('HDEL', keys[1], args[i])
    end
  end
  if args[1] ~= '' then
    redis.call('HINCRBY', keys[1], args[1], 1)
  end
  return redis.call('HGETALL', keys[1])
end, {'allow-oom'})
