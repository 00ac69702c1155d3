-- A gateway says that it is there (R14), and hears who else is. keys[1]: the hash gateway → number,
-- keys[2] gateway → what it says of itself.
-- args: the gateway ('': none, this only forgets), its number, what it says, then pairs: a gateway
-- to forget, and the number that it must still have. A number below the one that is here came late, and does not
-- count. Answers {gateway, number, gateway, number …}.
act('catalog_beat', function(keys, args)
  for i = 4, #args, 2 do
    if redis.call('HGET', keys[1], args[i]) == args[i + 1] then
      redis.call('HDEL', keys[1], args[i])
      redis.call('HDEL', keys[2], args[i])
    end
  end
  if args[1] ~= '' and tonumber(args[2]) > tonumber(redis.call('HGET', keys[1], args[1]) or 0) then
    redis.call('HSET', keys[1], args[1], args[2])
    if redis.call('HGET', keys[2], args[1]) ~= args[3] then
      redis.call('HSET', keys[2], args[1], args[3])
    end
  end
  return redis.call('HGETALL', keys[1])
end, {'allow-oom'})

-- What each gateway that has a number says of itself; keys as above. Answers {gateway, what it says,
-- gateway …}; '': nothing, as one of an earlier version.
act('catalog_said', function(keys)
  local said = {}
  for _, gateway in ipairs(redis.call('HKEYS', keys[1])) do
    said[#said + 1] = gateway
    said[#said + 1] = redis.call('HGET', keys[2], gateway) or ''
  end
  return said
end, {'no-writes', 'allow-oom'})
