-- Rates that several gateways share: the store's side of push/shared_bucket.py, which says what the
-- numbers mean. keys[1]: "{tag}:gateways", a hash gateway → "<seen> <seated> <call>"; beside it
--   clock           time, now: microseconds of this clock, which only the functions read
--   due             a sorted set of the names of all buckets, by when each is to be looked at
--   b:<name>        level, at, rate, line, implied ("<gateway> <gateway>"), and for each gateway
--                   g:<gateway> "<life> <granted> <counted> <back> <want> <need> <place> <served>"
--   recall:<g>      "<name> <rate>" of buckets of which a gateway is to give back what it can
-- What a bucket holds is its level, what gateways hold, and the standing shares of those implied:
-- never more than its burst. Only the level leaks.

local SAFE = 2 ^ -50  -- of rounding, so that it never mints anything

local function base_of(keys)
  return string.sub(keys[1], 1, -9)
end

-- TIME of a server may jump, and after a failover it is another's: in one step the clock goes on by
-- LIMITS_STEP_US at most, and never back.
local function tick(base)
  local parts = redis.call('TIME')
  local time = tonumber(parts[1]) * 1000000 + tonumber(parts[2])
  local held = redis.call('HMGET', base .. 'clock', 'time', 'now')
  local now = tonumber(held[2] or 0)
  if held[1] then
    now = now + math.max(0, math.min(LIMITS_STEP_US, time - tonumber(held[1])))
  end
  redis.call('HSET', base .. 'clock', 'time', text(time), 'now', text(now))
  return now
end

-- The gateways that are there: gateway → {seated, call}. The others are forgotten.
local function living(base, now)
  local found, rows = {}, redis.call('HGETALL', base .. 'gateways')
  for place = 1, #rows, 2 do
    local seen, seated, call = string.match(rows[place + 1], '^(%d+) (%d) (%d+)$')
    if now - tonumber(seen) > LIMITS_LEASE_US then
      redis.call('HDEL', base .. 'gateways', rows[place])
      redis.call('UNLINK', base .. 'recall:' .. rows[place])
    else
      found[rows[place]] = {seated = seated, call = tonumber(call)}
    end
  end
  return found
end

local function share_of(bucket)
  return math.max(1, math.floor(bucket.burst / LIMITS_PARTS))
end

local function count_of(set)
  local count = 0
  for _ in pairs(set) do
    count = count + 1
  end
  return count
end

local function load(base, name)
  local rows = redis.call('HGETALL', base .. 'b:' .. name)
  if #rows == 0 then
    return nil
  end
  local bucket = {name = name, line = 0, implied = {}, entries = {}}
  for place = 1, #rows, 2 do
    local field, value = rows[place], rows[place + 1]
    if field == 'rate' then
      local units, per_s, burst = string.match(value, '^(%d+) (%d+) (%d+)$')
      bucket.units, bucket.per_s, bucket.burst = tonumber(units), tonumber(per_s), tonumber(burst)
    elseif field == 'implied' then
      for gateway in string.gmatch(value, '%S+') do
        bucket.implied[gateway] = true
      end
    elseif string.sub(field, 1, 2) == 'g:' then
      local numbers = {}
      for number in string.gmatch(value, '%d+') do
        numbers[#numbers + 1] = tonumber(number)
      end
      bucket.entries[string.sub(field, 3)] = {
        life = numbers[1], granted = numbers[2], counted = numbers[3], back = numbers[4],
        want = numbers[5], need = numbers[6], place = numbers[7], served = numbers[8],
      }
    else
      bucket[field] = tonumber(value)
    end
  end
  return bucket
end

local function rate_text(bucket)
  return text(bucket.units) .. ' ' .. text(bucket.per_s) .. ' ' .. text(bucket.burst)
end

local function held_by(entry)
  return entry.granted - entry.counted - entry.back
end

local function per_us(bucket)
  local shares = LIMITS_PARTS - count_of(bucket.implied)
  return bucket.units * shares / (LIMITS_PARTS * bucket.per_s * 1000000)
end

-- What has leaked is gone, in whole units; the time of a part of one is kept.
local function leak(bucket, now)
  local rate, passed = per_us(bucket), now - bucket.at
  local whole = math.floor(passed * rate * (1 - SAFE))
  if whole >= bucket.level then
    bucket.level, bucket.at = 0, now
  elseif whole > 0 then
    bucket.level = bucket.level - whole
    bucket.at = math.min(now, bucket.at + math.ceil(whole / rate * (1 + SAFE)))
  end
end

-- What gateways had that are gone counts as used, now.
local function bury(bucket, alive, now)
  for gateway, entry in pairs(bucket.entries) do
    if not alive[gateway] then
      bucket.level = bucket.level + held_by(entry)
      bucket.entries[gateway] = nil
    end
  end
  for gateway in pairs(bucket.implied) do
    if not alive[gateway] then
      bucket.level, bucket.at = bucket.level + share_of(bucket), now
      bucket.implied[gateway] = nil
    end
  end
end

local function save(base, bucket, now)
  local key = base .. 'b:' .. bucket.name
  redis.call('DEL', key)
  if bucket.level == 0 and next(bucket.entries) == nil then
    redis.call('ZREM', base .. 'due', bucket.name)
    return
  end
  local implied = {}
  for gateway in pairs(bucket.implied) do
    implied[#implied + 1] = gateway
  end
  local row = {
    'level', text(bucket.level), 'at', text(bucket.at), 'line', text(bucket.line),
    'rate', rate_text(bucket),
    'implied', table.concat(implied, ' '),
  }
  local due = now + LIMITS_LOOK_US
  if next(bucket.entries) == nil then
    due = now + math.ceil(bucket.level / per_us(bucket)) + 1
  end
  for gateway, e in pairs(bucket.entries) do
    row[#row + 1] = 'g:' .. gateway
    row[#row + 1] = string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
      e.life, e.granted, e.counted, e.back, e.want, e.need, e.place, e.served)
  end
  redis.call('HSET', key, unpack(row))
  redis.call('ZADD', base .. 'due', text(due), bucket.name)
end

-- All that is held, by gateways and as standing shares.
local function outstanding(bucket)
  local sum = share_of(bucket) * count_of(bucket.implied)
  for _, entry in pairs(bucket.entries) do
    sum = sum + held_by(entry)
  end
  return sum
end

-- What an entry is to hold: a slice, the smaller the more there are, or what one request needs.
local function target_of(bucket, entry)
  local slice = math.max(1, math.floor(bucket.burst / (LIMITS_SLICES * count_of(bucket.entries))))
  return math.max(math.min(entry.need, bucket.burst), math.min(entry.want, slice))
end

-- Those that hold less than they are to, in the order in which they began to wait.
local function waiting(bucket)
  local line, names = {}, {}
  for gateway in pairs(bucket.entries) do
    names[#names + 1] = gateway
  end
  table.sort(names)
  for _, gateway in ipairs(names) do
    local entry = bucket.entries[gateway]
    if target_of(bucket, entry) <= held_by(entry) then
      entry.place, entry.served = 0, 0
    else
      if entry.place == 0 then
        bucket.line = bucket.line + 1
        entry.place = bucket.line
      end
      line[#line + 1] = {gateway = gateway, entry = entry}
    end
  end
  table.sort(line, function(one, other) return one.entry.place < other.entry.place end)
  return line
end

-- What is free goes to the first in the line. Who was given as much as it is to hold, and uses it so
-- fast that it never does, goes to the end. (Nobody holds less than nothing: it ends.)
local function hand_out(bucket)
  local free, line = bucket.burst - bucket.level - outstanding(bucket), waiting(bucket)
  while free > 0 and line[1] do
    local entry = line[1].entry
    local target = target_of(bucket, entry)
    local given = math.max(0, math.min(free, target - held_by(entry), target - entry.served))
    entry.granted, entry.served, free = entry.granted + given, entry.served + given, free - given
    if entry.served >= target then
      entry.place, entry.served = 0, 0
    end
    line = waiting(bucket)
  end
end

-- Who waits slows down those that have a standing share; and where time alone never brings what
-- the first in the line needs, the others give back.
local function recall(base, bucket, first)
  local member = bucket.name .. ' ' .. rate_text(bucket)
  for gateway in pairs(bucket.implied) do
    redis.call('SADD', base .. 'recall:' .. gateway, member)
  end
  local others = outstanding(bucket) - held_by(first.entry)
  if math.min(first.entry.need, bucket.burst) > bucket.burst - others then
    for gateway, entry in pairs(bucket.entries) do
      if gateway ~= first.gateway and held_by(entry) > 0 then
        redis.call('SADD', base .. 'recall:' .. gateway, member)
      end
    end
  end
end

local function fresh(name, ask, gateway, alive, now)
  local bucket = {
    name = name, level = 0, at = now, line = 0, implied = {}, entries = {},
    units = ask.units, per_s = ask.per_s, burst = ask.burst,
  }
  for other, one in pairs(alive) do
    if other ~= gateway and one.seated == '1' then
      bucket.implied[other] = true
    end
  end
  return bucket
end

-- The gateway's entry, with what it says of itself.
local function entry_of(bucket, gateway, ask, now)
  local entry = bucket.entries[gateway]
  if entry and entry.life < ask.life then
    bucket.level = bucket.level + held_by(entry)
    entry = nil
  end
  if not entry then
    entry = {life = ask.life, granted = 0, counted = ask.confirmed, back = 0, place = 0, served = 0}
    bucket.entries[gateway] = entry
    if bucket.implied[gateway] then
      bucket.implied[gateway], bucket.at = nil, now
    end
  end
  bucket.level = bucket.level + math.max(0, ask.used - entry.counted)
  entry.counted = math.max(entry.counted, ask.used)
  entry.back = math.max(entry.back, ask.back)
  -- a failover may have taken back what was handed out, and never makes it less than nothing
  entry.granted = math.max(entry.granted, ask.known, entry.counted + entry.back)
  entry.want, entry.need = ask.want, ask.need
  return entry
end

-- {life, granted, counted, how much goes to others first, how much it waits for, 1: released}.
local function answer(base, gateway, seated, ask, alive, now)
  local bucket = load(base, ask.name) or fresh(ask.name, ask, gateway, alive, now)
  leak(bucket, now)
  if bucket.units ~= ask.units or bucket.per_s ~= ask.per_s then
    bucket.at = now
  end
  bucket.units, bucket.per_s, bucket.burst = ask.units, ask.per_s, ask.burst
  bury(bucket, alive, now)
  local entry = entry_of(bucket, gateway, ask, now)
  local is_released = 0
  if ask.leaving == 1 and held_by(entry) == 0 then
    local room = bucket.burst - bucket.level - outstanding(bucket)
    if seated == '0' or room >= share_of(bucket) then
      bucket.entries[gateway] = nil
      bucket.implied[gateway] = seated == '1' or nil
      is_released = 1
    end
  end
  hand_out(bucket)
  local line, ahead, unmet = waiting(bucket), 0, 0
  for _, one in ipairs(line) do
    local short = target_of(bucket, one.entry) - held_by(one.entry)
    if one.gateway == gateway then
      unmet = short
      break
    end
    ahead = ahead + short
  end
  if line[1] then
    recall(base, bucket, line[1])
  end
  save(base, bucket, now)
  return {ask.life, entry.granted, entry.counted, ahead, unmet, is_released}
end

-- Look at so many of the buckets that are due: those that are empty go.
local function sweep(base, alive, now, looks)
  local names = redis.call('ZRANGEBYSCORE', base .. 'due', '-inf', text(now), 'LIMIT', 0, looks)
  for _, name in ipairs(names) do
    local bucket = load(base, name)
    if bucket then
      leak(bucket, now)
      bury(bucket, alive, now)
      hand_out(bucket)
      save(base, bucket, now)
    else
      redis.call('ZREM', base .. 'due', name)
    end
  end
  for _ = 1, redis.call('ZCARD', base .. 'due') - LIMITS_BUCKETS_MAX do
    local least = redis.call('ZPOPMIN', base .. 'due')
    redis.call('UNLINK', base .. 'b:' .. least[1])
  end
end

-- args: a gateway that was never there before. 1: it has a seat, and so a standing share of every
-- bucket that is not there yet.
act('limits_join', function(keys, args)
  local base = base_of(keys)
  local now = tick(base)
  local alive, taken = living(base, now), 0
  for _, one in pairs(alive) do
    taken = taken + tonumber(one.seated)
  end
  local seated = taken < LIMITS_SEATS and 1 or 0
  redis.call('HSET', base .. 'gateways', args[1], text(now) .. ' ' .. seated .. ' 0')
  return seated
end, {'allow-oom'})

-- args: a cursor, '0' first. {the next one, names of buckets}: all that are there all the time.
act('limits_names', function(keys, args)
  local base = base_of(keys)
  tick(base)
  local found = redis.call('ZSCAN', base .. 'due', args[1], 'COUNT', 1000)
  local names = {}
  for place = 1, #found[2], 2 do
    names[#names + 1] = found[2][place]
  end
  return {found[1], names}
end, {'allow-oom'})

-- args: the gateway, the number of this call, then of each bucket: name, units, per_s, burst, life,
-- confirmed, known, used, back, want, need, leaving. {0}: the gateway is not there any more, or has
-- called again since; else {1, what is recalled, an answer for each bucket}.
act('limits_ask', function(keys, args)
  local base, gateway = base_of(keys), args[1]
  local now = tick(base)
  local alive = living(base, now)
  local own, call = alive[gateway], tonumber(args[2])
  if not own or call <= own.call then
    return {0}
  end
  local row = text(now) .. ' ' .. own.seated .. ' ' .. text(call)
  redis.call('HSET', base .. 'gateways', gateway, row)
  local answers = {}
  for at = 3, #args, 12 do
    local numbers = {}
    for place = at + 1, at + 11 do
      numbers[#numbers + 1] = tonumber(args[place])
    end
    answers[#answers + 1] = answer(base, gateway, own.seated, {
      name = args[at], units = numbers[1], per_s = numbers[2], burst = numbers[3],
      life = numbers[4], confirmed = numbers[5], known = numbers[6], used = numbers[7],
      back = numbers[8], want = numbers[9], need = numbers[10], leaving = numbers[11],
    }, alive, now)
  end
  sweep(base, alive, now, 8 + 2 * #answers)
  return {1, redis.call('SPOP', base .. 'recall:' .. gateway, LIMITS_RECALLED_MAX), answers}
end, {'allow-oom'})

-- args: a gateway that ends, and holds nothing any more.
act('limits_leave', function(keys, args)
  local base = base_of(keys)
  tick(base)
  redis.call('HDEL', base .. 'gateways', args[1])
  redis.call('UNLINK', base .. 'recall:' .. args[1])
  return 1
end, {'allow-oom'})
