-- The shard's own hash, keys[1]: `incarnation` (its history, R30), `replicas` (how many could be
-- elected, R28), `touches` (a number that only grows: a lower one is an older copy).

-- The last write of every group on a connection, so that the WAIT behind it counts copies of
-- everything that the group has found, whoever wrote it. args[1]: the incarnation.
act('touch', function(keys, args)
  local held = redis.call('HMGET', keys[1], 'incarnation', 'replicas')
  if held[1] ~= args[1] then
    return refused('storage_unavailable', 'the incarnation of the store has changed')
  end
  return {redis.call('HINCRBY', keys[1], 'touches', 1), held[2]}
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
