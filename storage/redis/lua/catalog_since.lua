-- What has changed in the catalog since a version; keys as in catalog_change.
-- args: version, stamp. Answers {incarnation, version, stamp, secret, kind, rows}; the first four
-- are false where there is no catalog. kind: 'same' (no news); 'rows' (as they are now, each {the
-- number of its hash, id, value or false}); 'all' (the stream begins later: read all of it);
-- 'other' (that version was another one, or is still to come).
act('catalog_since', function(keys, args)
  local held = redis.call('HMGET', keys[1], 'incarnation', 'version', 'stamp', 'secret')
  local function answer(kind, rows)
    return {held[1], held[2], held[3], held[4], kind, rows or {}}
  end
  local version, since = tonumber(held[2]), tonumber(args[1])
  if not version or since > version then
    return answer('other')
  end
  if since == version then
    return answer(held[3] == args[2] and 'same' or 'other')
  end
  local entries = redis.call('XRANGE', keys[2], args[1] .. '-0', '+')
  if #entries ~= version - since + 1 then
    return answer('all')
  end
  if entries[1][2][2] ~= args[2] then
    return answer('other')
  end
  local seen, rows = {}, {}
  for i = 2, #entries do
    for _, row in ipairs(cmsgpack.unpack(entries[i][2][4])) do
      local place = row[1] .. ':' .. row[2]
      if not seen[place] then
        seen[place] = true
        rows[#rows + 1] = {row[1], row[2], redis.call('HGET', keys[row[1]], row[2])}
      end
    end
  end
  return answer('rows', rows)
end, {'no-writes', 'allow-oom'})
