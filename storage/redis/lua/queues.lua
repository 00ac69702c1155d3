-- Queues, groups, and what operators drop.

-- Everything of a cursor but its row.
local function forget_beside(prefix, n, group)
  if redis.call('EXISTS', cursor_key('ca', prefix, n, group)) == 1 then
    forget_examined(prefix, n) -- what stood aside pinned records that nobody would look at again
  end
  for _, kind in ipairs({'cr', 'ca', 'ck', 'cn', 'cp'}) do
    redis.call('UNLINK', cursor_key(kind, prefix, n, group))
  end
end

-- A fresh cursor at this floor under a raised epoch: every owner is fenced.
local function replace(prefix, n, group, floor)
  local key = cursor_key('c', prefix, n, group)
  redis.call('HINCRBY', key, 'epoch', 1)
  redis.call('HINCRBY', key, 'version', 1)
  redis.call('HSET', key, 'token', '', 'floor', text(floor), 'passed', '',
    'ended', '', 'dead', '')
  forget_beside(prefix, n, group)
end

local function floor_of(start, log)
  if start == 'earliest' then
    return log.start
  end
  if start == 'latest' then
    return log.certified
  end
  return math.min(math.max(tonumber(start), log.start), log.certified)
end

-- Sum of the lengths of "first-last,first-last".
local function size_of(passed)
  local size = 0
  for first, last in string.gmatch(passed, '(%d+)%-(%d+)') do
    size = size + tonumber(last) - tonumber(first) + 1
  end
  return size
end

-- The partitions of a queue and one start for each; or the refusal.
local function with_starts(prefix, args)
  local count = partitions_of(prefix)
  if not count then
    return nil, refused('queue_not_found', 'the storage has no such queue')
  end
  if #args - 1 ~= count then
    return nil, refused('invalid_request', (#args - 1) .. ' starts for ' .. count .. ' partitions')
  end
  return count
end

-- Whether the group has a cursor in every partition.
local function is_whole(prefix, count, group)
  for n = 0, count - 1 do
    if redis.call('EXISTS', cursor_key('c', prefix, n, group)) == 0 then
      return false
    end
  end
  return true
end

-- What was dropped stays so, whoever still makes it: ids are never used again (R1). Of a queue the key
-- `gone` is left, of a group its id in the set `dropped` of its queue.

-- args: number of partitions.
change('create_queue', function(prefix, args)
  if redis.call('EXISTS', prefix .. 'gone') == 1 then
    return refused('queue_not_found', 'the queue was dropped')
  end
  local wanted, count = tonumber(args[1]), partitions_of(prefix) or 0
  if count == 0 then
    redis.call('HSET', prefix .. 'queue', 'partitions', 0, 'messages', 0, 'bytes', 0)
  end
  for n = count, wanted - 1 do
    redis.call('HSET', prefix .. 'p:' .. n, 'next', 0, 'start', 0, 'certified', 0,
      'generation', 1, 'messages', 0, 'bytes', 0)
  end
  redis.call('HSET', prefix .. 'queue', 'partitions', math.max(wanted, count))
  return 1
end)

-- Producers of a partition that is gone; whether more are left.
local function drop_lines(prefix, n)
  local some = redis.call('ZPOPMIN', prefix .. 'lb:' .. n, 500)
  for place = 1, #some, 2 do
    redis.call('UNLINK', prefix .. 'ls:' .. n .. ':' .. some[place],
      prefix .. 'lo:' .. n .. ':' .. some[place])
  end
  return #some > 0
end

local function drop_group(prefix, count, group)
  for n = 0, count - 1 do
    redis.call('UNLINK', cursor_key('c', prefix, n, group))
    forget_beside(prefix, n, group)
    forget_letters(prefix, n, group)
  end
  redis.call('SREM', prefix .. 'groups', group)
end

-- One slice; 1: more is left. The first makes the queue unknown.
change('drop_queue', function(prefix)
  local count = partitions_of(prefix)
  if count then
    redis.call('SET', prefix .. 'gone', count)
    for n = 0, count - 1 do
      redis.call('UNLINK', prefix .. 'p:' .. n, prefix .. 'log:' .. n, prefix .. 'idx:' .. n)
      forget_examined(prefix, n)
      forget_due(prefix, n)
    end
    redis.call('DEL', prefix .. 'queue')
    return 1
  end
  count = tonumber(redis.call('GET', prefix .. 'gone') or '0')
  local group = redis.call('SRANDMEMBER', prefix .. 'groups')
  if group then
    drop_group(prefix, count, group)
    return 1
  end
  for n = 0, count - 1 do
    if drop_lines(prefix, n) then
      return 1
    end
    for _, bucket in ipairs(redis.call('ZRANGE', prefix .. 'ib:' .. n, 0, -1)) do
      redis.call('UNLINK', prefix .. 'i:' .. n .. ':' .. bucket)
    end
    redis.call('UNLINK', prefix .. 'l:' .. n, prefix .. 'lb:' .. n, prefix .. 'ib:' .. n,
      prefix .. 'bad:' .. n, prefix .. 'quarantine:' .. n)
  end
  redis.call('SET', prefix .. 'gone', 0)
  redis.call('DEL', prefix .. 'inbox', prefix .. 'dropped')
  return 0
end)

-- args: group, a start for each partition.
change('create_group', function(prefix, args)
  local group = args[1]
  local count, reply = with_starts(prefix, args)
  if not count then
    return reply
  end
  if redis.call('SISMEMBER', prefix .. 'dropped', group) == 1 then
    return refused('group_not_found', 'the group was dropped')
  end
  for n = 0, count - 1 do
    local key = cursor_key('c', prefix, n, group)
    if redis.call('EXISTS', key) == 0 then
      local floor = floor_of(args[n + 2], partition_of(prefix, n))
      redis.call('HSET', key, 'version', 1, 'epoch', 0, 'token', '', 'assignment', 0,
        'floor', text(floor), 'passed', '')
    end
  end
  redis.call('SADD', prefix .. 'groups', group)
  return 1
end)

-- args: group.
change('drop_group', function(prefix, args)
  -- of a queue that is going itself, too
  local count = partitions_of(prefix) or tonumber(redis.call('GET', prefix .. 'gone') or '0')
  drop_group(prefix, count, args[1])
  if redis.call('EXISTS', prefix .. 'gone') == 0 then
    redis.call('SADD', prefix .. 'dropped', args[1])
  end
  return 1
end)

-- args: group, a start for each partition.
change('seek', function(prefix, args)
  local count, reply = with_starts(prefix, args)
  if not count then
    return reply
  end
  if not is_whole(prefix, count, args[1]) then
    return refused('group_not_found', 'the storage has no group ' .. args[1])
  end
  for n = 0, count - 1 do
    replace(prefix, n, args[1], floor_of(args[n + 2], partition_of(prefix, n)))
  end
  return 1
end)

-- args: group, or '' for all; the partition to go on from, partitions at most. How many messages
-- went, and where to go on; -1: nowhere.
change('purge', function(prefix, args)
  local count, gone = partitions_of(prefix), 0
  if not count then
    return refused('queue_not_found', 'the storage has no such queue')
  end
  local groups = {args[1]}
  if args[1] == '' then
    groups = redis.call('SMEMBERS', prefix .. 'groups')
  elseif not is_whole(prefix, count, args[1]) then
    return refused('group_not_found', 'the storage has no group ' .. args[1])
  end
  local from = tonumber(args[2])
  local upto = math.min(from + tonumber(args[3]), count)
  local news = {}
  for n = from, upto - 1 do
    local log = partition_of(prefix, n)
    if args[1] == '' then
      gone = gone + log.messages + log.due_messages
      remove(prefix, n, log, log.messages, log.bytes)
      redis.call('UNLINK', prefix .. 'log:' .. n, prefix .. 'idx:' .. n,
        prefix .. 'bad:' .. n, prefix .. 'quarantine:' .. n)
      forget_examined(prefix, n)
      count_due(prefix, n, log, -log.due_messages, -log.due_bytes)
      forget_due(prefix, n)
      -- all of it is gone for everybody: what had no copies yet as well
      certify(prefix, n, log, log.next, news)
      redis.call('HSET', prefix .. 'p:' .. n, 'start', text(log.next))
    else
      local row = redis.call('HMGET', cursor_key('c', prefix, n, args[1]), 'floor', 'passed')
      gone = gone + log.certified - tonumber(row[1]) - size_of(row[2])
        + redis.call('ZCARD', cursor_key('ca', prefix, n, args[1]))
    end
    for _, group in ipairs(groups) do
      if redis.call('EXISTS', cursor_key('c', prefix, n, group)) == 1 then
        replace(prefix, n, group, log.certified)
      end
    end
  end
  announce(prefix, news)
  return {gone, upto < count and upto or -1}
end)

-- args: partition, successors as JSON. The end.
change('seal', function(prefix, args)
  local log = partition_of(prefix, args[1])
  if not log then
    return refused('queue_not_found', 'the storage has no such partition')
  end
  if not log.sealed then
    if log.due_messages > 0 then
      return refused('invalid_request', text(log.due_messages) .. ' scheduled messages wait in the '
        .. 'partition: it can be sealed when they are moved or cancelled')
    end
    log.sealed = log.next
    redis.call('HSET', prefix .. 'p:' .. args[1],
      'sealed', text(log.next), 'successors', args[2])
  end
  return log.sealed
end)

-- args: partition, first offset, count, bytes, reason. A record that cannot be read is put aside
-- (R30); put aside already: nothing happens.
change('quarantine', function(prefix, args)
  local n, id = args[1], text(tonumber(args[2]) + 1) .. '-0'
  local log = partition_of(prefix, n)
  local row = redis.call('XRANGE', prefix .. 'log:' .. n, id, id)[1]
  if not log or not row then
    return 0
  end
  local entry = redis.call('XRANGE', prefix .. 'idx:' .. n, id, id)[1]
  local count, size = tonumber(args[3]), 0
  if entry then
    count, size = entry_of(entry).count, entry_of(entry).size
  end
  redis.call('XADD', prefix .. 'quarantine:' .. n, '*', 'id', id, unpack(row[2]))
  redis.call('XDEL', prefix .. 'log:' .. n, id)
  redis.call('XDEL', prefix .. 'idx:' .. n, id)
  redis.call('HSET', prefix .. 'bad:' .. n, args[2], text(count) .. " " .. args[4])
  remove(prefix, n, log, count, size)
  return 1
end)
