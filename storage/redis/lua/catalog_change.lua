-- The catalog: keys[1] is its hash `state` (incarnation, version, stamp, secret, touches), keys[2]
-- the stream of its last changes (id `<version>-0`; the change's stamp, and which rows), keys[3…]
-- the hashes of its rows. A row is written by nobody but catalog_change.

-- Change rows, if nobody has since the version and stamp that the caller has seen.
-- args: incarnation, version, stamp, the new stamp, how many changes the stream keeps, the channel; a
-- row that must still begin with a generation (the number of its hash among the keys, its id, the
-- generation, 0: there is no row yet; its id is '': none must); then three for each row: the number of
-- its hash, its id, its value ('': none).
-- Answers 1: done, its version is one more; 0: somebody was faster, nothing is changed; -1: that row is
-- of another generation, nothing is changed.
act('catalog_change', function(keys, args)
  local state = keys[1]
  local held = redis.call('HMGET', state, 'incarnation', 'version', 'stamp')
  redis.call('HINCRBY', state, 'touches', 1)
  if held[1] ~= args[1] or held[2] ~= args[2] or held[3] ~= args[3] then
    return 0
  end
  if args[8] ~= '' then
    local row = redis.call('HGET', keys[tonumber(args[7])], args[8])
    if (row and row:match('^%d+') or '0') ~= args[9] then
      return -1
    end
  end
  local rows = {}
  for i = 10, #args, 3 do
    local number, id, value = tonumber(args[i]), args[i + 1], args[i + 2]
    if value == '' then
      redis.call('HDEL', keys[number], id)
    else
      redis.call('HSET', keys[number], id, value)
    end
    rows[#rows + 1] = {number, id}
  end
  local version = redis.call('HINCRBY', state, 'version', 1)
  redis.call('HSET', state, 'stamp', args[4])
  redis.call('XADD', keys[2], 'MAXLEN', args[5], version .. '-0',
    'stamp', args[4], 'rows', cmsgpack.pack(rows))
  redis.call('PUBLISH', args[6], tostring(version))
  return 1
end, {'allow-oom'})
