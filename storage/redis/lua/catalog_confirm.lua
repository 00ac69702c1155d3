-- A write behind what a gateway has read of the catalog, so that its WAIT counts copies of that.
-- keys as in catalog_change; args: incarnation, version, stamp. Answers 1: what was read is part of
-- this catalog; 0: it is not; -1: the stream of changes begins after it, so nobody can say.
act('catalog_confirm', function(keys, args)
  redis.call('HINCRBY', keys[1], 'touches', 1)
  local held = redis.call('HMGET', keys[1], 'incarnation', 'version', 'stamp')
  if held[1] ~= args[1] or tonumber(held[2] or 0) < tonumber(args[2]) then
    return 0
  end
  if held[2] == args[2] then
    return held[3] == args[3] and 1 or 0
  end
  local entry = redis.call('XRANGE', keys[2], args[2] .. '-0', args[2] .. '-0')[1]
  if not entry then
    return -1
  end
  return entry[2][2] == args[3] and 1 or 0
end, {'allow-oom'})
