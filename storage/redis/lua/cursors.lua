-- Cursors. What a write does to one is decided where its owner is (storage/cursor.py); here it is
-- fenced, by epoch and token (P7), and by the version that it was decided on.

-- args: partition, group, token, its owner's part, assignment, epoch_seen. The epoch of before
-- where it was the same owner's, or -1; then as `tocsin_cursor`. Asked again with the token that
-- owns it: the same start.
change('own', function(prefix, args)
  local n, group = args[1], args[2]
  local key = cursor_key('c', prefix, n, group)
  local row = redis.call('HMGET', key, 'epoch', 'token', 'assignment', 'previous')
  if not row[1] or not partition_of(prefix, n) then
    return refused('group_not_found', 'the storage has no group ' .. group .. ' here')
  end
  local epoch, previous = tonumber(row[1]), -1
  if tonumber(args[5]) < tonumber(row[3]) then
    return refused('fenced', 'assignment ' .. args[5] .. ' is older than ' .. row[3]
      .. ', which owned this')
  end
  if row[2] == args[3] and tonumber(args[6]) <= epoch then
    previous = tonumber(row[4] or '-1')
  else
    if row[2] ~= '' and string.sub(row[2], 1, OWNER_BYTES) == args[4] then
      previous = epoch
    end
    epoch = math.max(epoch, tonumber(args[6])) + 1
  end
  redis.call('HSET', key, 'epoch', text(epoch), 'token', args[3], 'assignment', args[5],
    'previous', text(previous))
  redis.call('HINCRBY', key, 'version', 1)
  local answer = cursor_of(prefix, n, group)
  table.insert(answer, 1, previous)
  return answer
end)

-- Lists in the arguments: a count, and so many items.
local function list_from(args, at)
  local count = tonumber(args[at])
  local list = {}
  for place = 1, count do
    list[place] = args[at + place]
  end
  return list, at + count + 1
end

-- What stands aside no longer may have pinned a record that trimming has examined. `list` as in
-- write_cursor: offset, key hash.
local function look_again(prefix, n, list)
  local examined, again = examined_keys(prefix, n)
  if #list > 0 and redis.call('EXISTS', examined) == 1 then
    local offsets = {}
    for place = 1, #list, 2 do
      offsets[#offsets + 1] = list[place]
    end
    in_parts('SADD', again, offsets)
  end
end

local LINE = '%s:%s'

-- args: partition, group, epoch, token, version, floor, passed, ended ('': as it is), dead, the
-- highest offset that is named (-1: none), then lists: retries (offset, row), offsets of retries that
-- go, side lines (offset, key hash), those that go, lengths of lines (key hash, count), lines that
-- go, parked (key hash, row), unparked. 1; 0: fenced; -1: the cursor has another version, so that it
-- must be decided again. Nothing happened in both. Refused: an offset is not certified (R10).
change('write_cursor', function(prefix, args)
  local n, group = args[1], args[2]
  local key = cursor_key('c', prefix, n, group)
  local row = redis.call('HMGET', key, 'epoch', 'token', 'version')
  if not row[1] or row[2] == '' or row[1] ~= args[3] or row[2] ~= args[4] then
    return 0
  end
  if row[3] ~= args[5] then
    return -1
  end
  local certified = tonumber(redis.call('HGET', prefix .. 'p:' .. n, 'certified') or '0')
  if tonumber(args[10]) >= certified then
    return refused('invalid_request', string.format(
      'offset %s is not certified; the certified end is %.0f', args[10], certified))
  end
  redis.call('HSET', key, 'version', text(tonumber(row[3]) + 1),
    'floor', args[6], 'passed', args[7], 'dead', args[9])
  if args[8] ~= '' then
    redis.call('HSET', key, 'ended', args[8])
  end
  local list, at = list_from(args, 11)
  in_parts('HSET', cursor_key('cr', prefix, n, group), list)
  list, at = list_from(args, at)
  in_parts('HDEL', cursor_key('cr', prefix, n, group), list)
  local aside, lines = cursor_key('ca', prefix, n, group), cursor_key('ck', prefix, n, group)
  list, at = list_from(args, at)
  for place = 1, #list, 2 do
    redis.call('ZADD', aside, list[place], string.format(LINE, list[place], list[place + 1]))
    redis.call('ZADD', lines, 0, string.format('%s:%013.0f', list[place + 1], list[place]))
  end
  list, at = list_from(args, at)
  look_again(prefix, n, list)
  for place = 1, #list, 2 do
    redis.call('ZREM', aside, string.format(LINE, list[place], list[place + 1]))
    redis.call('ZREM', lines, string.format('%s:%013.0f', list[place + 1], list[place]))
  end
  list, at = list_from(args, at)
  in_parts('HSET', cursor_key('cn', prefix, n, group), list)
  list, at = list_from(args, at)
  in_parts('HDEL', cursor_key('cn', prefix, n, group), list)
  list, at = list_from(args, at)
  in_parts('HSET', cursor_key('cp', prefix, n, group), list)
  list, at = list_from(args, at)
  in_parts('HDEL', cursor_key('cp', prefix, n, group), list)
  return 1
end)
