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
    'latest')
  if not row[1] then
    return nil
  end
  return {
    next = tonumber(row[1]), start = tonumber(row[2]), certified = tonumber(row[3]),
    generation = tonumber(row[4]), messages = tonumber(row[5]), bytes = tonumber(row[6]),
    sealed = row[7] and tonumber(row[7]) or nil, level = row[8] or 'all',
    latest = tonumber(row[9] or '0'),
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
