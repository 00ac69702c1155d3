-- What a manager does to a shard. keys[1]: the hash of who manages it: holder and term of the manager
-- that did so last, and the user of each server by its place, user:<place>.

-- Whether a manager of this term may act there: no later one has, nor another one of the same term.
local function is_latest(key, holder, term)
  local held = redis.call('HMGET', key, 'holder', 'term')
  local before = tonumber(held[2] or '0')
  return term > before or (term == before and held[1] == holder), before
end

-- A manager begins, or goes on. keys[2]: the shard's hash. args: holder, term, then pairs: a server's
-- place, its user. Answers {1, term, {field, value, ...}}: the hash; or {0, term}: a later manager has
-- been here. A store without incarnation stays as empty as it is, or it could not be provisioned again.
act('manage', function(keys, args)
  if redis.call('HEXISTS', keys[2], 'incarnation') == 0 then
    return {1, tonumber(args[2]), {}}
  end
  local may, before = is_latest(keys[1], args[1], tonumber(args[2]))
  if not may then
    return {0, before}
  end
  if before ~= tonumber(args[2]) then
    redis.call('HSET', keys[1], 'holder', args[1], 'term', args[2])
  end
  for i = 3, #args, 2 do
    redis.call('HSET', keys[1], 'user:' .. args[i], args[i + 1])
  end
  return {1, tonumber(args[2]), redis.call('HGETALL', keys[1])}
end, {'allow-oom'})

-- Who could be elected. keys[2]: the shard's hash. args: holder, term; how many replicas there are
-- and who is not counted, as it must be; how many there are then, and who is not counted then.
-- Answers 1: done; 0: it is not as it must be; -1: a later manager has been here.
act('count', function(keys, args)
  if not is_latest(keys[1], args[1], tonumber(args[2])) then
    return -1
  end
  local held = redis.call('HMGET', keys[2], 'replicas', 'out')
  if held[1] ~= args[3] or (held[2] or '') ~= args[4] then
    return 0
  end
  redis.call('HSET', keys[2], 'replicas', args[5], 'out', args[6])
  redis.call('HINCRBY', keys[2], 'touches', 1)
  return 1
end, {'allow-oom'})

-- A server that is not counted and will not be back is known no more. keys[2]: the shard's hash. args:
-- its place. Answers 1: it is forgotten; 0: it is not one that is not counted.
act('forget_server', function(keys, args)
  local left, found = {}, 0
  for place in string.gmatch(redis.call('HGET', keys[2], 'out') or '', '%S+') do
    if place == args[1] then
      found = 1
    else
      left[#left + 1] = place
    end
  end
  if found == 1 then
    redis.call('HSET', keys[2], 'out', table.concat(left, ' '))
    redis.call('HINCRBY', keys[2], 'touches', 1)
    redis.call('HDEL', keys[1], 'user:' .. args[1])
  end
  return found
end, {'allow-oom'})
