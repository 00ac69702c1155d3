-- Make a catalog where there is none; keys as in catalog_change.
-- args: incarnation, stamp, secret. Answers 1: made; 0: there is one, which stays as it is.
act('catalog_found', function(keys, args)
  redis.call('HINCRBY', keys[1], 'touches', 1)
  if redis.call('HEXISTS', keys[1], 'incarnation') == 1 then
    return 0
  end
  redis.call('HSET', keys[1],
    'incarnation', args[1], 'version', 1, 'stamp', args[2], 'secret', args[3])
  redis.call('XADD', keys[2], '1-0', 'stamp', args[2], 'rows', cmsgpack.pack({}))
  return 1
end)
