-- What leaves a partition: records that every group has settled (R12). Each settled offset is looked
-- at once, whichever gateway asks: the partition remembers what was examined. There, everything is
-- gone, or pinned by an offset that is still to be settled, which is new when it is, or by one that
-- stands aside, whose settling says so (cursors.lua). So neither a backlog nor a stuck head, nor what
-- lies behind it, is scanned twice.

-- Ranges are flat lists in order, {first, last, first, last, …}.

local function ranges_of(passed)
  local ranges = {}
  for first, last in string.gmatch(passed, '(%d+)%-(%d+)') do
    ranges[#ranges + 1], ranges[#ranges + 2] = tonumber(first), tonumber(last)
  end
  return ranges
end

-- The same of what several reasons have, each in order.
local function sorted_ranges_of(dead)
  local pairs_of, ranges = {}, {}
  for first, last in string.gmatch(dead, '(%d+)%-(%d+)') do
    pairs_of[#pairs_of + 1] = {tonumber(first), tonumber(last)}
  end
  table.sort(pairs_of, function(one, other)
    return one[1] < other[1]
  end)
  for _, pair in ipairs(pairs_of) do
    ranges[#ranges + 1], ranges[#ranges + 2] = pair[1], pair[2]
  end
  return ranges
end

local function add(ranges, first, last)
  if first > last then
    return
  end
  local end_at = ranges[#ranges]
  if end_at and first <= end_at + 1 then
    ranges[#ranges] = math.max(end_at, last)
  else
    ranges[#ranges + 1], ranges[#ranges + 2] = first, last
  end
end

-- What is in both.
local function common(one, other)
  local both, a, b = {}, 1, 1
  while one[a] and other[b] do
    add(both, math.max(one[a], other[b]), math.min(one[a + 1], other[b + 1]))
    if one[a + 1] < other[b + 1] then
      a = a + 2
    else
      b = b + 2
    end
  end
  return both
end

-- What is in one of them.
local function joined(one, other)
  local all, a, b = {}, 1, 1
  while one[a] or other[b] do
    if not other[b] or (one[a] and one[a] <= other[b]) then
      add(all, one[a], one[a + 1])
      a = a + 2
    else
      add(all, other[b], other[b + 1])
      b = b + 2
    end
  end
  return all
end

-- What is in the first and not in the second.
local function without(one, other)
  local left, b = {}, 1
  for a = 1, #one, 2 do
    local first, last = one[a], one[a + 1]
    while other[b] and other[b + 1] < first do
      b = b + 2
    end
    local at = b
    while other[at] and other[at] <= last do
      add(left, first, other[at] - 1)
      first = other[at + 1] + 1
      at = at + 2
    end
    add(left, first, last)
  end
  return left
end

-- What every group has passed of what is certified, but for what is on its way to the dead letters;
-- all of that where there is none. And of the groups that have something aside, the keys of it.
local function settled_by_all(prefix, n, log)
  local settled, asides, count = {}, {}, 0
  add(settled, log.start, log.certified - 1)
  for _, name in ipairs(redis.call('SMEMBERS', prefix .. 'groups')) do
    local row = redis.call('HMGET', cursor_key('c', prefix, n, name), 'floor', 'passed', 'dead')
    if row[1] then
      count = count + 1
      local passed = {}
      add(passed, 0, tonumber(row[1]) - 1)
      passed = joined(passed, ranges_of(row[2]))
      if row[3] and row[3] ~= '' then
        passed = without(passed, sorted_ranges_of(row[3]))
      end
      settled = common(settled, passed)
      local aside = cursor_key('ca', prefix, n, name)
      if redis.call('EXISTS', aside) == 1 then
        asides[#asides + 1] = aside
      end
    end
  end
  return settled, asides, count
end

-- What was examined, of what is settled, and since when. `begins`: what has to be looked at again
-- is taken out, and after `keep_ms` everything is: gateways of before remember nothing, and do not
-- say what they settle.
local function examined(prefix, n, settled, begins, now, keep_ms, count)
  local key, again = examined_keys(prefix, n)
  local since, text_of = string.match(redis.call('GET', key) or '', '^(%d+);(.*)$')
  if not since or (begins and math.abs(now - tonumber(since)) > keep_ms) then
    redis.call('UNLINK', again)
    return {}, text(now)
  end
  local seen = common(ranges_of(text_of), settled)
  local offsets = begins and redis.call('SPOP', again, count) or {}
  for place, offset in ipairs(offsets) do
    offsets[place] = tonumber(offset)
  end
  table.sort(offsets)
  local points = {}
  for _, offset in ipairs(offsets) do
    add(points, offset, offset)
  end
  return without(seen, points), since
end

local function keep_examined(prefix, n, since, seen)
  local parts = {}
  for place = 1, #seen, 2 do
    parts[#parts + 1] = text(seen[place]) .. '-' .. text(seen[place + 1])
  end
  local key, value = (examined_keys(prefix, n)), since .. ';' .. table.concat(parts, ',')
  if redis.call('GET', key) ~= value then
    redis.call('SET', key, value)
  end
end

-- Whether nothing of it stands aside.
local function is_settled(asides, first, last)
  for _, aside in ipairs(asides) do
    if redis.call('ZCOUNT', aside, text(first), text(last)) > 0 then
      return false
    end
  end
  return true
end

-- One bounded look: the records of what is settled and was not examined.
-- `look`: index, now, due, looks (left), bytes (left), settled, asides; what it finds: ids, count,
-- size (of what may go), done (examined now), goes_on (the offset; -1: nothing is left).
local function judge(look, entry)
  local place = look.place
  while look.settled[place + 1] and look.settled[place + 1] < entry.first do
    place = place + 2
  end
  look.place = place
  if look.settled[place] and look.settled[place] <= entry.first
    and look.settled[place + 1] >= entry.last
    and is_settled(look.asides, entry.first, entry.last) then
    look.ids[#look.ids + 1] = entry.id
    look.count, look.size = look.count + entry.count, look.size + entry.size
  end
end

-- Whether there is more to look at behind this range.
local function examine(look, first, last)
  first = math.max(first, look.judged + 1) -- its record was, with the range before
  if first > last then
    return true
  end
  look.looks = look.looks - 1
  local before = redis.call('XREVRANGE', look.index, text(first + 1), '-', 'COUNT', 1)[1]
  local from = before and entry_of(before).last >= first and before[1] or text(first + 1)
  while first <= last do
    local wanted = math.max(look.looks, 1)
    local entries = redis.call('XRANGE', look.index, from, text(last + 1), 'COUNT', wanted)
    for _, raw in ipairs(entries) do
      local entry = entry_of(raw)
      if look.looks <= 0 or look.size >= look.bytes then
        add(look.done, first, entry.first - 1)
        look.goes_on = math.max(first, entry.first)
        return false
      end
      look.looks = look.looks - 1
      if entry.published > look.now then
        add(look.done, first, entry.first - 1) -- its clock was wrong: nothing waits for this one
      elseif entry.published > look.due then
        add(look.done, first, entry.first - 1)
        look.goes_on = -1 -- nor for what came later: retention passes in order
        return false
      else
        judge(look, entry)
        add(look.done, first, math.min(entry.last, last))
      end
      look.judged = entry.last
      first, from = math.max(first, entry.last + 1), text(entry.last + 2)
    end
    if #entries < wanted then
      add(look.done, first, last)
      return true
    end
  end
  return true
end

-- args: partition, now and published up to (ms), keep_all, the offset to begin at, entries at most.
-- How many messages 'trim' would delete of a slice, and where to go on; -1: that was the last one.
act('trimmable', function(keys, args)
  local prefix, n, left = prefix_of(keys), args[1], tonumber(args[6])
  local log = partition_of(prefix, n)
  if not log then
    return {0, -1}
  end
  local settled, asides, groups = settled_by_all(prefix, n, log)
  if args[4] == '1' and groups == 0 then
    return {0, -1}
  end
  local now, due, messages = tonumber(args[2]), tonumber(args[3]), 0
  local todo = common(settled, {tonumber(args[5]), OFFSET_MAX})
  for place = 1, #todo, 2 do
    local from = text(todo[place] + 1)
    while true do
      local entries = redis.call('XRANGE', prefix .. 'idx:' .. n, from, text(todo[place + 1] + 1),
        'COUNT', math.max(left, 1))
      for _, raw in ipairs(entries) do
        local entry = entry_of(raw)
        if left <= 0 then
          return {messages, entry.first}
        end
        left = left - 1
        if entry.published > due and entry.published <= now then
          return {messages, -1} -- retention passes in order
        end
        if entry.published <= due and entry.last <= todo[place + 1]
          and is_settled(asides, entry.first, entry.last) then
          messages = messages + entry.count
        end
        from = text(entry.last + 2)
      end
      if #entries == 0 then
        break
      end
    end
  end
  return {messages, -1}
end, {'no-writes'})

-- args: partition, now and published up to (ms), keep_all, the offset to go on from (0: begin),
-- entries at most, bytes at most, how long what was examined is remembered (ms). The bytes freed,
-- and where to go on; -1: nothing is left to do now.
change('trim', function(prefix, args)
  local n, from, count_max = args[1], tonumber(args[5]), tonumber(args[6])
  local log = partition_of(prefix, n)
  if not log then
    return {0, -1}
  end
  local settled, asides, groups = settled_by_all(prefix, n, log)
  if args[4] == '1' and groups == 0 then
    return {0, -1}
  end
  local now = tonumber(args[2])
  local seen, since =
    examined(prefix, n, settled, from == 0, now, tonumber(args[8]), count_max)
  local look = {
    index = prefix .. 'idx:' .. n, now = now, due = tonumber(args[3]), looks = count_max,
    bytes = tonumber(args[7]), settled = settled, asides = asides, place = 1, judged = -1,
    ids = {}, count = 0, size = 0, done = {}, goes_on = -1,
  }
  local todo = common(without(settled, seen), {from, OFFSET_MAX})
  for place = 1, #todo, 2 do
    if look.looks <= 0 or look.size >= look.bytes then
      look.goes_on = todo[place]
      break
    end
    if not examine(look, todo[place], todo[place + 1]) then
      break
    end
  end
  in_parts('XDEL', look.index, look.ids)
  in_parts('XDEL', prefix .. 'log:' .. n, look.ids)
  if look.count > 0 then
    remove(prefix, n, log, look.count, look.size)
  end
  keep_examined(prefix, n, since, joined(seen, look.done))
  local oldest = redis.call('XRANGE', look.index, '-', '+', 'COUNT', 1)[1]
  redis.call('HSET', prefix .. 'p:' .. n, 'start',
    text(oldest and entry_of(oldest).first or log.next))
  local _, again = examined_keys(prefix, n)
  if look.goes_on == -1 and redis.call('EXISTS', again) == 1 then
    look.goes_on = 0
  end
  return {look.size, look.goes_on}
end)
