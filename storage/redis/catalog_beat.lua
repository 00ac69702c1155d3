-- A gateway says that it is there (R14), and hears who else is. keys[1]: the hash gateway → number.
-- args: the gateway ('': none, this only forgets), its number, then pairs: a gateway to forget, and
-- the number that it must still have. A number below the one that is here came late, and does not
-- count. Answers {gateway, number, gateway, number …}.
act('catalog_beat', function(keys, args)
  for i = 3, #args, 2 do
    if redis.call('HGET', keys[1], args[i]) == args[i + 1] then
      redis.call('HDEL', keys[1], args[i])
    end
  end
  if args[1] ~= '' and tonumber(args[2]) > tonumber(redis.call('HGET', keys[1], args[1]) or 0) then
    redis.call('HSET', keys[1], args[1], args[2])
  end
  return redis.call('HGETALL', keys[1])
end, {'allow-oom'})
