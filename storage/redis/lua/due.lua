-- The due store: scheduled messages that wait until they come into the log (push/due.py). The
-- rules are those of storage/rules/due.py; appending puts messages in (append.lua).

-- Rows as {number, due (ms), row}: as many of these members as have together at most so many
-- bytes as JSON, but at least one. And how many members were looked at. One that does not wait
-- is passed over; one whose row is missing has an empty row, for that is damage.
local function rows_of(prefix, n, members, bytes_max)
  local order, rows = due_keys(prefix, n)
  local found, size, looked = {}, 0, 0
  for _, member in ipairs(members) do
    local due = redis.call('ZSCORE', order, member)
    if due then
      local row = redis.call('HGET', rows, member) or ''
      size = size + due_size(row)
      if #found > 0 and size > bytes_max then
        break
      end
      found[#found + 1] = {member, text(tonumber(due)), row}
    end
    looked = looked + 1
  end
  return found, looked
end

-- This server's time, in ms.
local function now_ms()
  local parts = redis.call('TIME')
  return tonumber(parts[1]) * 1000 + math.floor(tonumber(parts[2]) / 1000)
end

-- args: partition, until (ms), count and bytes as JSON at most. The rows that are due, in order;
-- when the one that follows them is due, -1: there is none; the partition's generation; and the
-- time of this server.
look('due_first', function(prefix, args)
  local order = due_keys(prefix, args[1])
  local members = redis.call('ZRANGEBYSCORE', order, '-inf', args[2], 'LIMIT', 0, args[3])
  local found, looked = rows_of(prefix, args[1], members, tonumber(args[4]))
  local log = partition_of(prefix, args[1])
  return {found, due_at(prefix, args[1], looked), log and log.generation or 0, now_ms()}
end)

-- args: partition, bytes as JSON at most, then numbers. The rows of those that wait, in the
-- order of the numbers, and how many numbers were looked at.
look('due_find', function(prefix, args)
  local members = {}
  for place = 3, #args do
    members[#members + 1] = member_of(tonumber(args[place]))
  end
  return {rows_of(prefix, args[1], members, tonumber(args[2]))}
end)

-- How many messages are not behind a place. Those that are due together may be very many, so their
-- numbers are bisected.
local function rank_behind(order, due, member)
  local low = redis.call('ZCOUNT', order, '-inf', '(' .. due)
  local high = redis.call('ZCOUNT', order, '-inf', due)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', order, middle, middle)[1] <= member then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- args: partition, due (ms) and number of the place that all are behind (0, 0: none, for nothing
-- is due at 0), count and bytes as JSON at most, and a list to look in: 'k' or 'i' and a hash, 8
-- bytes; '': all. The rows, in order; and the place of the last one that was looked at, -1 and
-- 0: that was all.
look('due_look', function(prefix, args)
  local n, due, member = args[1], tonumber(args[2]), member_of(tonumber(args[3]))
  local order, _, _, names = due_keys(prefix, n)
  local wanted, name, members, dues = tonumber(args[4]), args[6], {}, {}
  if name == '' then
    local rank = rank_behind(order, args[2], member)
    local some = redis.call('ZRANGE', order, rank, rank + wanted - 1, 'WITHSCORES')
    for place = 1, #some, 2 do
      members[#members + 1], dues[#dues + 1] = some[place], some[place + 1]
    end
  else
    for place, one in ipairs(redis.call('ZRANGEBYLEX', names,
      '(' .. due_name(name, due, member), '(' .. name .. ';', 'LIMIT', 0, wanted)) do
      members[place], dues[place] = string.sub(one, -13), string.sub(one, -30, -15)
    end
  end
  local found, looked = rows_of(prefix, n, members, tonumber(args[5]))
  if looked < wanted and looked == #members then
    return {found, -1, 0}
  end
  return {found, tonumber(dues[looked]), tonumber(members[looked])}
end)

-- args: partition, wall ms, digest. The place that is remembered for it; '': none.
look('due_place', function(prefix, args)
  if not partition_of(prefix, args[1]) then
    return ''
  end
  local place = find_ids(prefix, args[1], tonumber(args[2]), {args[3]})[args[3]]
  return place and text(place) or ''
end)

-- The time of this server; and for each partition: messages, bytes, the next number, when the first
-- one is due, -1: none is there.
look('due_states', function(prefix)
  local rows = {}
  for n = 0, (partitions_of(prefix) or 0) - 1 do
    local log = partition_of(prefix, n)
    rows[#rows + 1] = {log.due_messages, log.due_bytes, log.due_next, due_at(prefix, n, 0)}
  end
  return {now_ms(), rows}
end)

-- The row of a message that waits in this version, as text; nil: there is none.
local function row_in(prefix, n, number, version)
  local order, rows = due_keys(prefix, n)
  local row = redis.call('HGET', rows, member_of(number))
  if row and #row >= DUE_HEAD and text((struct.unpack('<I4', row))) == version
    and redis.call('ZSCORE', order, member_of(number)) then
    return row
  end
  return nil
end

-- args: partition, level, wall ms, bucket of client ids (0: they are not remembered), published ms,
-- checksum, header, payload, count, bytes as JSON of what moves, as a record of the log; bucket of
-- what became of tickets; then for each message its number and its version. The answer is that of
-- `append`; empty: one of them does not wait in that version, nothing has happened. The rows go
-- before the record comes, so that this takes next to no memory at memory's end either.
change('due_move', function(prefix, args)
  local n, moved, seen = args[1], {}, {}
  local log = partition_of(prefix, n)
  for place = 12, log and #args or 0, 2 do
    local number = tonumber(args[place])
    local row = row_in(prefix, n, number, args[place + 1])
    if not row or seen[number] then
      return {}
    end
    seen[number] = true
    moved[#moved + 1] = {number, row}
  end
  if #moved == 0 then
    return {}
  end
  if log.sealed then
    return refused('storage_unavailable', 'the partition is sealed')
  end
  local first, count, size = log.next, tonumber(args[9]), tonumber(args[10])
  if first + count > OFFSET_MAX then
    return refused('limit_reached', 'the partition has given out every offset that it has')
  end
  local ids, marks, left = {}, {}, 0
  for place, one in ipairs(moved) do
    local digest, bytes = take_due(prefix, n, one[1], one[2])
    left = left + bytes
    if digest and args[4] ~= '0' then
      ids[#ids + 1], ids[#ids + 2] = digest, text(TICKET + one[1])
    end
    marks[#marks + 1], marks[#marks + 2] = fate_mark(one[1]), text(first + place - 1)
  end
  count_due(prefix, n, log, -#moved, -left)
  forget_ids(prefix, n, tonumber(args[3]))
  remember_ids(prefix, n, args[4], ids)
  remember_ids(prefix, n, args[11], marks)
  log.next, log.messages, log.bytes = first + count, log.messages + count, log.bytes + size
  redis.call('HINCRBY', prefix .. 'queue', 'messages', text(count))
  redis.call('HINCRBY', prefix .. 'queue', 'bytes', text(size))
  store_record(prefix, n, log, {
    level = args[2], first = first, count = count, size = size, skips = '', published = args[5],
    checksum = args[6], header = args[7], payload = args[8],
  })
  return {first, count, log.certified, log.next, log.generation}
end)

-- args: partition, number, id bucket. 1; 0: it does not wait there.
change('due_cancel', function(prefix, args)
  local n, number = args[1], tonumber(args[2])
  local log, _, rows = partition_of(prefix, n), due_keys(prefix, n)
  local row = log and redis.call('HGET', rows, member_of(number))
  if not row then
    return 0
  end
  local digest, size = take_due(prefix, n, number, row)
  local ids = {fate_mark(number), text(CANCELLED)}
  if digest then
    ids[3], ids[4] = digest, text(TICKET + number)
  end
  remember_ids(prefix, n, args[3], ids)
  count_due(prefix, n, log, -1, -size)
  return 1
end)

-- args: partition, number, version, bytes as JSON, checksum, header, payload, bytes_max and
-- due_bytes_max of the queue. When the first message is due then; -1: it does not wait there in this
-- version, nothing has happened. Refused: it is larger than before, and there is no room for that.
change('due_change', function(prefix, args)
  local n, number = args[1], tonumber(args[2])
  local log, row = partition_of(prefix, n), row_in(prefix, n, number, args[3])
  if not log or not row then
    return -1
  end
  local size, most, due_most = tonumber(args[4]), tonumber(args[8]), tonumber(args[9])
  local more = size - due_size(row)
  local total = redis.call('HMGET', prefix .. 'queue', 'bytes', 'due_bytes')
  if more > 0 and due_most > 0 and tonumber(total[2] or '0') + more > due_most then
    return refused('schedule_full', 'what is scheduled has no room for a larger message')
  end
  if more > 0 and most > 0 and tonumber(total[1]) + more > most then
    return refused('queue_full', 'the queue has no room for a larger message')
  end
  local _, before = take_due(prefix, n, number, row)
  put_due(prefix, n, number, tonumber(args[3]) + 1, size, tonumber(args[5]), args[6], args[7])
  count_due(prefix, n, log, 0, size - before)
  return notice_due(prefix, n)
end)

-- args: partition, number as it is in the order, the row that was found damaged. It is put aside
-- (R30). 1; 0: it is another one by now, or put aside already: nothing happens.
change('due_quarantine', function(prefix, args)
  local n, member, row, size = args[1], args[2], args[3], 0
  local order, rows = due_keys(prefix, n)
  local log, number = partition_of(prefix, n), tonumber(member)
  if not log or not redis.call('ZSCORE', order, member)
    or (redis.call('HGET', rows, member) or '') ~= row then
    return 0
  end
  if number and member_of(number) == member then
    local _
    _, size = take_due(prefix, n, number, row)
  else
    redis.call('ZREM', order, member)
    redis.call('HDEL', rows, member)
  end
  redis.call('HSET', prefix .. 'dq:' .. n, member, row)
  count_due(prefix, n, log, -1, -size)
  return 1
end)
