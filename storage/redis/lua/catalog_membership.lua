-- The one row of a group (R14): keys[1] the hash of these rows, keys[2] that of the groups, keys[3]
-- the catalog's `state`. A value begins with its generation and a blank.

-- args: group id, the generation expected (0: no row yet), the new one, the rest of the new value,
-- the channel. Answers 1: done; 0: the generation is another one; -1: there is no such group.
act('catalog_membership', function(keys, args)
  local id = args[1]
  redis.call('HINCRBY', keys[3], 'touches', 1)
  if redis.call('HEXISTS', keys[2], id) == 0 then
    return -1
  end
  local held = redis.call('HGET', keys[1], id)
  if (held and held:match('^%d+') or '0') ~= args[2] then
    return 0
  end
  redis.call('HSET', keys[1], id, args[3] .. ' ' .. args[4])
  redis.call('PUBLISH', args[5], id .. ' ' .. args[3])
  return 1
end, {'allow-oom'})

-- Read it, with a write behind it whose WAIT counts copies of what is read. args: group id.
-- Answers its value, or false.
act('catalog_member', function(keys, args)
  redis.call('HINCRBY', keys[3], 'touches', 1)
  return redis.call('HGET', keys[1], args[1])
end, {'allow-oom'})
