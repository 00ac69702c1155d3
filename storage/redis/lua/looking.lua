-- Reading and looking: changes nothing.

local READ_EACH_MAX = 1000

-- What a record takes in the memory of who reads it, by its index entry.
local function memory_of(entry)
  return RECORD_MEMORY_BYTES + (MESSAGE_MEMORY_BYTES + 1) * entry.count + entry.size - 1
end

-- The last record, from `from` on and beginning below `upto`, that `bytes_max` bytes of memory have
-- room for, but at least one; nil: there is none.
local function last_that_fits(prefix, n, from, upto, bytes_max)
  local size, last
  while from < upto do
    local entries = redis.call('XRANGE', prefix .. 'idx:' .. n, text(from + 1), text(upto),
      'COUNT', 64)
    for _, raw in ipairs(entries) do
      local entry = entry_of(raw)
      local more = memory_of(entry)
      if last and size + more > bytes_max then
        return last, entry.first
      end
      size, last, from = (size or 0) + more, entry.first, entry.last + 1
    end
    if #entries < 64 then
      break
    end
  end
  return last, upto
end

-- args: partition, offset, bytes, the offset that records begin below. start, certified, where the
-- answer ends, the damage known there, and the records as the stream has them; empty: unknown.
look('read', function(prefix, args)
  local n = args[1]
  local log = partition_of(prefix, n)
  if not log then
    return {}
  end
  local upto = math.min(log.certified, tonumber(args[4]))
  local from = begins(prefix, n, tonumber(args[2]))
  local last, ends = last_that_fits(prefix, n, from, upto, tonumber(args[3]))
  local records = {}
  if last then
    records = redis.call('XRANGE', prefix .. 'log:' .. n, text(from + 1), text(last + 1))
  end
  return {log.start, log.certified, ends, redis.call('HGETALL', prefix .. 'bad:' .. n), records}
end)

-- args: partition, time (ms). Where the first certified record begins of which, or before which, one
-- was published then or later; the certified end where there is none.
look('offset_at', function(prefix, args)
  local log, time = partition_of(prefix, args[1]), tonumber(args[2])
  if not log then
    return refused('queue_not_found', 'the storage has no such partition')
  end
  local low, high, found = log.start, log.certified, log.certified
  while low < high do
    local middle = math.floor((low + high) / 2)
    local raw = redis.call('XRANGE', prefix .. 'idx:' .. args[1],
      text(middle + 1), text(log.certified), 'COUNT', 1)[1]
    local entry = raw and entry_of(raw)
    if entry and entry.latest < time then
      low = entry.last + 1
    else
      high, found = middle, entry and entry.first or found
    end
  end
  return found
end)

-- args: partition, bytes, offsets. How many of the offsets are answered, as many as these bytes of
-- memory have room for but at least one, and the records that hold them, each once in a row. Refused
-- where one of them is there and not certified: it was once, and a failover knows nothing of that
-- for a moment. Who asked would take it for gone.
look('read_each', function(prefix, args)
  local n, log = args[1], partition_of(prefix, args[1])
  local answer, size, last = {0}, 0, nil
  for place = 3, log and math.min(#args, READ_EACH_MAX + 2) or 0 do
    local offset = tonumber(args[place])
    if offset >= log.certified and offset < log.next then
      return refused('storage_unavailable', 'offset ' .. args[place]
        .. ' is not certified at the moment')
    end
    if not last or offset < last.first or offset > last.last then
      local raw = redis.call('XREVRANGE', prefix .. 'idx:' .. n, text(offset + 1), '-',
        'COUNT', 1)[1]
      last = raw and entry_of(raw)
      if last and last.last >= offset and last.first < log.certified then
        size = size + memory_of(last)
        if place > 3 and size > tonumber(args[2]) then
          break
        end
        answer[#answer + 1] = redis.call('XRANGE', prefix .. 'log:' .. n, raw[1], raw[1])[1]
      end
    end
    answer[1] = place - 2
  end
  return answer
end)

-- args: partition, offset. When the record was published that holds it or is the first behind it.
look('published', function(prefix, args)
  local log = partition_of(prefix, args[1])
  if not log then
    return -1
  end
  local from = begins(prefix, args[1], tonumber(args[2]))
  if from >= log.certified then
    return -1
  end
  local found = redis.call('XRANGE', prefix .. 'idx:' .. args[1],
    text(from + 1), text(log.certified), 'COUNT', 1)[1]
  return found and entry_of(found).published or -1
end)

-- args: partitions. For each: certified, next, the level of what is between; 0, 0 where there is
-- none. Empty: no such queue.
look('tails', function(prefix, args)
  if not partitions_of(prefix) then
    return {}
  end
  local flat = {}
  for _, n in ipairs(args) do
    local row = redis.call('HMGET', prefix .. 'p:' .. n, 'certified', 'next', 'level')
    flat[#flat + 1] = tonumber(row[1] or '0')
    flat[#flat + 1] = tonumber(row[2] or '0')
    flat[#flat + 1] = row[3] or 'all'
  end
  return flat
end)

-- Rows of all partitions; empty: unknown.
look('partitions', function(prefix)
  local rows = {}
  for n = 0, (partitions_of(prefix) or 0) - 1 do
    local log = partition_of(prefix, n)
    rows[#rows + 1] = {
      log.start, log.next, log.certified, log.generation, log.messages, log.bytes,
      log.sealed or -1,
    }
  end
  return rows
end)

-- args: partition, group, then pairs of offsets: what stands aside there. As cursor_of has it.
look('cursor', function(prefix, args)
  local answer = cursor_of(prefix, args[1], args[2])
  if #answer > 0 then
    answer[#answer + 1] = aside_in(prefix, args[1], args[2], args, 3)
  end
  return answer
end)

-- args: partition, group, then pairs of offsets. What stands aside there.
look('aside', function(prefix, args)
  return aside_in(prefix, args[1], args[2], args, 3)
end)

-- args: group. For each partition that it has a cursor in: partition, epoch, floor, passed, number
-- aside, number parked, the first aside or -1, what goes to the dead letters.
look('cursors', function(prefix, args)
  local rows = {}
  for n = 0, (partitions_of(prefix) or 0) - 1 do
    local row = redis.call('HMGET', cursor_key('c', prefix, n, args[1]),
      'epoch', 'floor', 'passed', 'dead')
    if row[1] then
      local aside = cursor_key('ca', prefix, n, args[1])
      local least = redis.call('ZRANGE', aside, 0, 0)[1]
      rows[#rows + 1] = {
        n, tonumber(row[1]), tonumber(row[2]), row[3], redis.call('ZCARD', aside),
        redis.call('HLEN', cursor_key('cp', prefix, n, args[1])),
        least and tonumber(string.match(least, '^%d+')) or -1, row[4] or '',
      }
    end
  end
  return rows
end)

-- args: partition, group, key hash, after, count. The offsets of its side line.
local function line_of_key(prefix, n, group, key_hash, after, count)
  return redis.call('ZRANGEBYLEX', cursor_key('ck', prefix, n, group),
    '(' .. string.format('%s:%013.0f', key_hash, after), '(' .. key_hash .. ';',
    'LIMIT', 0, count)
end

look('read_side', function(prefix, args)
  if tonumber(args[4]) < 0 then
    return redis.call('ZRANGEBYLEX', cursor_key('ck', prefix, args[1], args[2]),
      '[' .. args[3] .. ':', '(' .. args[3] .. ';', 'LIMIT', 0, args[5])
  end
  return line_of_key(prefix, args[1], args[2], args[3], tonumber(args[4]), args[5])
end)

-- args: partition, group. For each parked key: key hash, its row, messages, head or -1, its retry.
look('parked', function(prefix, args)
  local n, group = args[1], args[2]
  local rows = {}
  local parked = redis.call('HGETALL', cursor_key('cp', prefix, n, group))
  for place = 1, #parked, 2 do
    local key_hash = parked[place]
    local head = redis.call('ZRANGEBYLEX', cursor_key('ck', prefix, n, group),
      '[' .. key_hash .. ':', '(' .. key_hash .. ';', 'LIMIT', 0, 1)[1]
    head = head and tonumber(string.match(head, ':(%d+)$'))
    local retry = head and redis.call('HGET', cursor_key('cr', prefix, n, group), text(head))
    rows[#rows + 1] = {
      key_hash, parked[place + 1],
      tonumber(redis.call('HGET', cursor_key('cn', prefix, n, group), key_hash) or '0'),
      head or -1, retry or '',
    }
  end
  return rows
end)
