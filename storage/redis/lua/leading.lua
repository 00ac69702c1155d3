-- Which manager leads, keys[1]: the hash of holder, term and beat. args: the row as it must be, three
-- words, and three of the row to write; or none, to read it. Answers the row as it is then; of one
-- that is not there yet: '', 0, 0.
act('lead', function(keys, args)
  local held = redis.call('HMGET', keys[1], 'holder', 'term', 'beat')
  local row = {held[1] or '', held[2] or '0', held[3] or '0'}
  if #args == 6 and row[1] == args[1] and row[2] == args[2] and row[3] == args[3] then
    row = {args[4], args[5], args[6]}
    redis.call('HSET', keys[1], 'holder', row[1], 'term', row[2], 'beat', row[3])
  end
  return row
end, {'allow-oom'})

-- What the leader says of clusters. keys[1] as above, keys[2]: the hash cluster -> text. args:
-- holder, term, then pairs; an empty text: the cluster is gone. Answers 1: kept; 0: another one leads.
act('lead_say', function(keys, args)
  local held = redis.call('HMGET', keys[1], 'holder', 'term')
  if held[1] ~= args[1] or held[2] ~= args[2] then
    return 0
  end
  for i = 3, #args, 2 do
    if args[i + 1] == '' then
      redis.call('HDEL', keys[2], args[i])
    else
      redis.call('HSET', keys[2], args[i], args[i + 1])
    end
  end
  return 1
end, {'allow-oom'})

-- Who leads, and what was said of each cluster: {holder, {cluster, text, ...}}.
act('lead_told', function(keys)
  return {redis.call('HGET', keys[1], 'holder') or '', redis.call('HGETALL', keys[2])}
end, {'no-writes', 'allow-oom'})
