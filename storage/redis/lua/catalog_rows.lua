-- Some rows of one hash, keys[1]. args: where to go on ('0': at the begin), about how many.
-- Answers {where to go on, {id, value, id, value …}}; '0': that was all. Rows that change meanwhile
-- may be missing or old: catalog_since, asked from before the first page, tells them.
act('catalog_rows', function(keys, args)
  return redis.call('HSCAN', keys[1], args[1], 'COUNT', args[2])
end, {'no-writes', 'allow-oom'})

-- One row of the hash keys[1]. args: its id. Answers its value, or false.
act('catalog_row', function(keys, args)
  return redis.call('HGET', keys[1], args[1])
end, {'no-writes', 'allow-oom'})
