-- The first fragment of the library. VERSION is put in when it is joined: the functions of two
-- versions of the broker stand beside each other, and a gateway calls those it was written with.

local function act(name, callback, flags)
  redis.register_function{
    function_name = 'tocsin_VERSION_' .. name, callback = callback, flags = flags or {}
  }
end

local function refused(code, detail)
  return redis.error_reply('TOCSIN ' .. code .. ' ' .. detail)
end

-- What the acts on queues share. Every key of a queue begins with "{<queue id>}:", so that all are in one slot;
-- functions are given one key, "{<queue id>}:queue", and derive the others from it.

local function prefix_of(keys)
  return string.sub(keys[1], 1, -6)
end

-- Whole numbers up to 2^53; tostring would round them at 14 digits.
local function text(number)
  return string.format('%.0f', number)
end

-- Every act writes something, so that a WAIT behind it counts copies of it (R9).
local function touch(prefix)
  if redis.call('EXISTS', prefix .. 'queue') == 1 then
    redis.call('HINCRBY', prefix .. 'queue', 'acts', 1)
  else
    redis.call('SET', prefix .. 'touch', '1', 'PX', 60000)
  end
end

-- A command on a key with many arguments, in parts: Lua's stack is bounded.
local function in_parts(command, key, list)
  for first = 1, #list, 1000 do
    redis.call(command, key, unpack(list, first, math.min(first + 999, #list)))
  end
end

-- A partition's row; nil: unknown.
local function partition_of(prefix, n)
  local row = redis.call('HMGET', prefix .. 'p:' .. n,
    'next', 'start', 'certified', 'generation', 'messages', 'bytes', 'sealed', 'level',
    'latest', 'due_next', 'due_messages', 'due_bytes')
  if not row[1] then
    return nil
  end
  return {
    next = tonumber(row[1]), start = tonumber(row[2]), certified = tonumber(row[3]),
    generation = tonumber(row[4]), messages = tonumber(row[5]), bytes = tonumber(row[6]),
    sealed = row[7] and tonumber(row[7]) or nil, level = row[8] or 'all',
    latest = tonumber(row[9] or '0'), due_next = tonumber(row[10] or '0'),
    due_messages = tonumber(row[11] or '0'), due_bytes = tonumber(row[12] or '0'),
  }
end

local function partitions_of(prefix)
  return tonumber(redis.call('HGET', prefix .. 'queue', 'partitions') or nil)
end

-- So many retained messages of so many bytes go. Where damage made it more than there was,
-- everything goes, so that the queue's total stays the sum.
local function remove(prefix, n, log, count, size)
  count, size = math.min(count, log.messages), math.min(size, log.bytes)
  if count == 0 then
    return
  end
  log.messages, log.bytes = log.messages - count, log.bytes - size
  redis.call('HSET', prefix .. 'p:' .. n, 'messages', text(log.messages), 'bytes', text(log.bytes))
  redis.call('HINCRBY', prefix .. 'queue', 'messages', '-' .. text(count))
  redis.call('HINCRBY', prefix .. 'queue', 'bytes', '-' .. text(size))
end

-- Offset o of a stream's entry is its id less one: ids begin at 1.
local function first_of(id)
  return tonumber(string.match(id, '^%d+')) - 1
end

-- An index entry is {id, {'n', count, 'z', bytes, 'm', published, 'x', latest}}: the last is when
-- the latest of all records so far was published. The clocks of gateways differ, it only grows.
local function entry_of(raw)
  local first, fields = first_of(raw[1]), raw[2]
  return {
    id = raw[1], first = first, count = tonumber(fields[2]), size = tonumber(fields[4]),
    published = tonumber(fields[6]), latest = tonumber(fields[8] or fields[6]),
    last = first + tonumber(fields[2]) - 1,
  }
end

-- Where the record begins that holds this offset; the offset itself when none holds it.
local function begins(prefix, n, offset)
  local found = redis.call('XREVRANGE', prefix .. 'idx:' .. n, text(offset + 1), '-', 'COUNT', 1)
  if found[1] then
    local entry = entry_of(found[1])
    if entry.last >= offset then
      return entry.first
    end
  end
  return offset
end

-- What is below `upto` is certified (R10). `news`: a list that gets partition and end, if the end is
-- new; `announce` sends it to those who wait.
local function certify(prefix, n, log, upto, news)
  upto = math.min(upto, log.next)
  if upto > log.certified then
    log.certified = upto
    redis.call('HSET', prefix .. 'p:' .. n, 'certified', text(upto))
    news[#news + 1] = n
    news[#news + 1] = text(upto)
  end
end

local function announce(prefix, news)
  if #news > 0 then
    redis.call('PUBLISH', 'tocsin:certified:' .. prefix, table.concat(news, ' '))
  end
end

local RANKS = {['local'] = 0, quorum = 1, all = 2}

-- Append a record to the log, after what was counted in `log`, and certify it if its level is `local`
-- and everything before it is certified. `record`: level, first, count, size, skips, published (ms),
-- checksum, header, payload.
local function store_record(prefix, n, log, record)
  local first, id = record.first, text(record.first + 1) .. '-0'
  local count, size = text(record.count), text(record.size)
  local seal = redis.sha1hex(table.concat(
    {text(first), count, size, record.published, record.skips, record.checksum}, ':'))
  redis.call('XADD', prefix .. 'log:' .. n, id, 'n', count, 'z', size, 'm', record.published,
    's', record.skips, 'c', record.checksum, 'd', seal, 'h', record.header, 'p', record.payload)
  local latest = text(math.max(log.latest, tonumber(record.published)))
  redis.call('XADD', prefix .. 'idx:' .. n, id, 'n', count, 'z', size, 'm', record.published,
    'x', latest)
  local level = record.level -- of everything that is not certified
  if log.certified < first and RANKS[log.level] > RANKS[level] then
    level = log.level
  end
  redis.call('HSET', prefix .. 'p:' .. n, 'next', text(log.next), 'level', level,
    'latest', latest,
    'messages', text(log.messages), 'bytes', text(log.bytes))
  if record.level == 'local' and log.certified == first then
    local news = {}
    certify(prefix, n, log, log.next, news)
    announce(prefix, news)
  end
end

-- A due store (due.lua): the numbers of its messages by when they are due, their rows, the ids of
-- clients that wait there, and the numbers by key and by id. A number has 13 digits, so that those
-- that are due at the same time are in its order.
local function due_keys(prefix, n)
  return prefix .. 'due:' .. n, prefix .. 'dm:' .. n, prefix .. 'dd:' .. n, prefix .. 'dk:' .. n
end

local function member_of(number)
  return string.format('%013.0f', number)
end

-- Under which digest it is remembered what became of a scheduled message (push/due.py).
local function fate_mark(number)
  return 'scheduled' .. string.rep('\0', 15) .. struct.pack('<I8', number)
end

-- Digest -> place (an offset, or TICKET and a number) of those of these digests that are remembered
-- at this time, or wait in the due store. A number there that does not wait was found damaged.
local function find_ids(prefix, n, wall, digests)
  local known = {}
  if #digests == 0 then
    return known
  end
  local _, rows, waiting = due_keys(prefix, n)
  local places = {waiting}
  for _, bucket in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'ib:' .. n,
    '(' .. text(wall), '+inf')) do
    places[#places + 1] = prefix .. 'i:' .. n .. ':' .. bucket
  end
  for _, key in ipairs(places) do
    for first = 1, #digests, 1000 do
      local last = math.min(first + 999, #digests)
      for at, found in ipairs(redis.call('HMGET', key, unpack(digests, first, last))) do
        local place = tonumber(found or nil)
        if place and key == waiting then
          place = redis.call('HEXISTS', rows, member_of(place)) == 1 and TICKET + place or nil
        end
        if place then
          known[digests[first + at - 1]] = place
        end
      end
    end
  end
  return known
end

-- Remember a list of digest, place, digest, place … until a time.
-- Some of the buckets of ids whose time has passed leave: more than come.
local function forget_ids(prefix, n, wall)
  local buckets = prefix .. 'ib:' .. n
  local passed = redis.call('ZRANGEBYSCORE', buckets, '-inf', text(wall), 'LIMIT', 0, 8)
  for _, bucket in ipairs(passed) do
    redis.call('UNLINK', prefix .. 'i:' .. n .. ':' .. bucket)
    redis.call('ZREM', buckets, bucket)
  end
end

local function remember_ids(prefix, n, until_ms, list)
  if #list > 0 then
    in_parts('HSET', prefix .. 'i:' .. n .. ':' .. until_ms, list)
    redis.call('ZADD', prefix .. 'ib:' .. n, until_ms, until_ms)
  end
end

-- So many messages of so many bytes come into the due store, or leave it. If damage has made that
-- more than there was, everything leaves.
local function count_due(prefix, n, log, count, size)
  count, size = math.max(count, -log.due_messages), math.max(size, -log.due_bytes)
  if log.due_messages + count == 0 then
    size = -log.due_bytes
  end
  for field, more in pairs({messages = count, bytes = size}) do
    if more ~= 0 then
      log['due_' .. field] = log['due_' .. field] + more
      redis.call('HINCRBY', prefix .. 'p:' .. n, 'due_' .. field, text(more))
      redis.call('HINCRBY', prefix .. 'queue', 'due_' .. field, text(more))
      redis.call('HINCRBY', prefix .. 'queue', field, text(more))
    end
  end
end

-- What a row begins with: version, bytes as JSON, checksum, length of the header (4, 4, 4 and 2
-- bytes), and a seal of the first three and the number.
local DUE_HEAD = 54
local DUE_HEADER = 65

-- What the header of a row in a due store says (push/due.py): the client id's digest, nil: none; and
-- the places in the lists by key and by id, of which only the time is to be put in. Empty for a row
-- that is too short to have a header.
local function due_facts(row)
  local header = string.sub(row, DUE_HEAD + 1, DUE_HEAD + DUE_HEADER)
  local facts = {names = {}}
  if #header < DUE_HEADER then
    return facts
  end
  for kind, at in pairs({k = 18, i = 26}) do
    local hash = string.sub(header, at, at + 7)
    if hash ~= string.rep('\0', 8) then
      facts.names[#facts.names + 1] = kind .. hash
    end
  end
  facts.digest = string.sub(header, 34, 65)
  if facts.digest == string.rep('\0', 32) then
    facts.digest = nil
  end
  return facts
end

-- A place in the list of a key or an id, which comes in the order of (due time, number).
local function due_name(name, due, member)
  return name .. string.format(':%016.0f:', due) .. member
end

-- Put a message into the due store. `checksum` is that of header and payload.
local function put_due(prefix, n, number, version, size, checksum, header, payload)
  local order, rows, waiting, names = due_keys(prefix, n)
  local member, due = member_of(number), struct.unpack('<I8', header, 2)
  local seal = redis.sha1hex(table.concat(
    {text(number), text(version), text(size), text(checksum)}, ':'))
  local row = struct.pack('<I4I4I4I2', version, size, checksum, #header)
    .. seal .. header .. payload
  local facts = due_facts(row)
  redis.call('HSET', rows, member, row)
  redis.call('ZADD', order, text(due), member)
  for _, name in ipairs(facts.names) do
    redis.call('ZADD', names, 0, due_name(name, due, member))
  end
  if facts.digest then
    redis.call('HSET', waiting, facts.digest, text(number))
  end
end

-- A message's bytes as JSON, by its row. A damaged one may say anything, but not more than it has.
local function due_size(row)
  local size = #row < DUE_HEAD and 0 or struct.unpack('<I4', row, 5)
  return math.min(size, math.max(0, #row - DUE_HEAD - DUE_HEADER))
end

-- Take a message out of the due store. Its digest, nil: none; and its bytes as JSON.
local function take_due(prefix, n, number, row)
  local order, rows, waiting, names = due_keys(prefix, n)
  local member, facts = member_of(number), due_facts(row)
  local due = tonumber(redis.call('ZSCORE', order, member) or '0')
  redis.call('HDEL', rows, member)
  redis.call('ZREM', order, member)
  for _, name in ipairs(facts.names) do
    redis.call('ZREM', names, due_name(name, due, member))
  end
  if facts.digest and redis.call('HGET', waiting, facts.digest) == text(number) then
    redis.call('HDEL', waiting, facts.digest)
  end
  return facts.digest, due_size(row)
end

-- When the message of this rank is due, -1: there is none.
local function due_at(prefix, n, rank)
  local found = redis.call('ZRANGE', (due_keys(prefix, n)), rank, rank, 'WITHSCORES')[2]
  return found and tonumber(found) or -1
end

-- When the first message is due; those who wait for it are told.
local function notice_due(prefix, n)
  local due = due_at(prefix, n, 0)
  redis.call('PUBLISH', 'tocsin:due:' .. prefix, n .. ' ' .. text(due))
  return due
end

local function forget_due(prefix, n)
  redis.call('UNLINK', prefix .. 'dq:' .. n, due_keys(prefix, n))
end

local function cursor_key(kind, prefix, n, group)
  return prefix .. kind .. ':' .. n .. ':' .. group
end

-- args from `at` on: pairs of offsets. (offset, key hash) of those that stand in a side line.
local function aside_in(prefix, n, group, args, at)
  local found = {}
  for place = at, #args, 2 do
    local some = redis.call('ZRANGEBYSCORE', cursor_key('ca', prefix, n, group),
      args[place], args[place + 1])
    for _, member in ipairs(some) do
      found[#found + 1] = member
    end
  end
  return found
end

local function cursor_of(prefix, n, group)
  local log = partition_of(prefix, n)
  local row = redis.call('HMGET', cursor_key('c', prefix, n, group),
    'version', 'epoch', 'token', 'assignment', 'floor', 'passed', 'ended', 'dead')
  if not log or not row[1] then
    return {}
  end
  return {
    tonumber(row[1]), tonumber(row[2]), row[3], tonumber(row[4]), tonumber(row[5]), row[6],
    redis.call('HGETALL', cursor_key('cr', prefix, n, group)),
    redis.call('HGETALL', cursor_key('cn', prefix, n, group)),
    redis.call('HGETALL', cursor_key('cp', prefix, n, group)),
    log.certified, log.generation, row[7] or '', row[8] or '',
  }
end

-- A group's inbox in a partition, what was answered there, and in which order.
local function letter_keys(prefix, n, group)
  return cursor_key('in', prefix, n, group), cursor_key('ia', prefix, n, group),
    cursor_key('iq', prefix, n, group)
end

local function forget_letters(prefix, n, group)
  redis.call('UNLINK', letter_keys(prefix, n, group))
end

-- What trimming has examined in a partition (trimming.lua), and which offsets it must look at again.
local function examined_keys(prefix, n)
  return prefix .. 'ex:' .. n, prefix .. 'ea:' .. n
end

local function forget_examined(prefix, n)
  redis.call('UNLINK', examined_keys(prefix, n))
end

-- An act on a queue: `callback` is given the prefix of its keys, and the arguments.
local function change(name, callback)
  act(name, function(keys, args)
    local prefix = prefix_of(keys)
    touch(prefix)
    return callback(prefix, args)
  end, {'allow-oom'})
end

-- The same for one that reads and changes nothing.
local function look(name, callback)
  act(name, function(keys, args)
    return callback(prefix_of(keys), args)
  end, {'no-writes'})
end
