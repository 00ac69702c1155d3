-- The shard's own hash, keys[1]: `incarnation` (its history, R30), `replicas` (how many could be
-- elected, R28), `out` (the places of those that are not counted in it), `touches` (a number that
-- only grows: a lower one is an older copy), and when each version of the functions was last in use.

-- The last write of every group on a connection, so that the WAIT behind it counts copies of
-- everything that the group has found, whoever wrote it. args[1]: the incarnation.
act('touch', function(keys, args)
  local held = redis.call('HMGET', keys[1], 'incarnation', 'replicas', 'out')
  if held[1] ~= args[1] then
    return refused('storage_unavailable', 'the incarnation of the store has changed')
  end
  return {redis.call('HINCRBY', keys[1], 'touches', 1), held[2], held[3] or ''}
end, {'allow-oom'})

-- This version of the functions is in use: used:<library> is when, in seconds of the server. A store
-- without incarnation stays as empty as it is, or it could not be provisioned again.
act('used', function(keys)
  if redis.call('HEXISTS', keys[1], 'incarnation') == 0 then
    return 0
  end
  return redis.call('HSET', keys[1], 'used:tocsin_VERSION', redis.call('TIME')[1])
end, {'allow-oom'})

-- args[1]: how long a library must not have been used, in seconds; then libraries. Those of them;
-- of one that never told, the time begins now.
act('unused', function(keys, args)
  local now, unused = tonumber(redis.call('TIME')[1]), {}
  if redis.call('HEXISTS', keys[1], 'incarnation') == 0 then
    return unused
  end
  for place = 2, #args do
    local field = 'used:' .. args[place]
    local used = redis.call('HGET', keys[1], field)
    if not used then
      redis.call('HSET', keys[1], field, now)
    elseif now - tonumber(used) >= tonumber(args[1]) then
      redis.call('HDEL', keys[1], field)
      unused[#unused + 1] = args[place]
    end
  end
  return unused
end, {'allow-oom'})

-- Make an empty store ours. args[1]: the incarnation, args[2]: the number of replicas. Done
-- already under this incarnation: nothing happens, `replicas` stays.
act('provision', function(keys, args)
  local held = redis.call('HGET', keys[1], 'incarnation')
  if held == args[1] then
    redis.call('HINCRBY', keys[1], 'touches', 1)
    return 0
  end
  if held then
    return refused('storage_unavailable', 'the store belongs to another incarnation')
  end
  if redis.call('DBSIZE') > 0 then
    return refused('storage_unavailable', 'the store is not empty, and not ours')
  end
  redis.call('HSET', keys[1], 'incarnation', args[1], 'replicas', args[2], 'touches', 1)
  return 1
end)

-- How many replicas could be elected, args[1]: raised before one is attached, lowered after one
-- cannot be elected any more.
act('set_replicas', function(keys, args)
  if redis.call('HEXISTS', keys[1], 'incarnation') == 0 then
    return refused('storage_unavailable', 'the store has no incarnation')
  end
  redis.call('HSET', keys[1], 'replicas', args[1])
  return redis.call('HINCRBY', keys[1], 'touches', 1)
end, {'allow-oom'})
