-- Appending and what deduplicates it (R5-R9): the rules of storage/appending.py and dedup.py.

-- A producer's line in a partition. Its row is 'bucket:resolved:top:count'. What it has stored stands
-- in a list of runs: the first offset, then the sequences that ascend from there, 8 bytes each. So an
-- ordinary record costs one command, however many messages it has. Runs whose sequences are all
-- resolved leave at the front; others, in part resolved, count until the list is made anew.
local function line_of(prefix, n, producer, bucket)
  local line = {
    producer = producer, bucket = bucket, seen = nil, resolved = 0, top = -1, count = 0,
    fresh = {}, runs = {}, stored = prefix .. 'ls:' .. n .. ':' .. producer,
    held = prefix .. 'lo:' .. n .. ':' .. producer,
  }
  local row = redis.call('HGET', prefix .. 'l:' .. n, producer)
  if row then
    local seen, resolved, top, count = string.match(row, '^(%-?%d+):(%-?%d+):(%-?%d+):(%d+)$')
    local age = bucket - tonumber(seen)
    line.resolved, line.top, line.count = tonumber(resolved), tonumber(top), tonumber(count)
    if age > IDLE_BUCKETS then
      redis.call('UNLINK', line.stored, line.held)
      line.count = 0
      if age > FORGOTTEN_BUCKETS then
        line.resolved, line.top = 0, -1
      else
        line.resolved = line.top + 1
      end
    end
    line.seen = tonumber(seen)
    line.bucket = math.max(bucket, line.seen)
    line.holding = redis.call('EXISTS', line.held) == 1
  end
  return line
end

local function flush(line)
  in_parts('RPUSH', line.stored, line.runs)
  line.runs, line.ends = {}, nil
end

local function keep_line(prefix, n, line)
  flush(line)
  redis.call('HSET', prefix .. 'l:' .. n, line.producer,
    text(line.bucket) .. ':' .. text(line.resolved) .. ':' .. text(line.top) .. ':'
    .. text(line.count))
  if line.bucket ~= line.seen then
    redis.call('ZADD', prefix .. 'lb:' .. n, text(line.bucket), line.producer)
  end
end

-- Everything below `resolved` was answered.
local function raise(line, resolved)
  if resolved <= line.resolved then
    return
  end
  flush(line)
  line.resolved = resolved
  line.top = math.max(line.top, resolved - 1)
  local run = line.count > 0 and redis.call('LINDEX', line.stored, 0)
  while run and struct.unpack('<I8', run, #run - 7) < resolved do
    redis.call('LPOP', line.stored)
    line.count = line.count - (#run / 8 - 1)
    run = redis.call('LINDEX', line.stored, 0)
  end
end

-- So many sequences of a record begin to be stored at an offset.
local function add_run(line, offset, sequences)
  line.runs[#line.runs + 1] = struct.pack('<I8', offset) .. sequences
  line.count = line.count + #sequences / 8
end

-- The sequences that are stored, by themselves; the list is made anew without those resolved.
local function load(line)
  if line.known then
    return
  end
  flush(line)
  line.known = {}
  local kept = {}
  for _, run in ipairs(redis.call('LRANGE', line.stored, 0, -1)) do
    local offset = struct.unpack('<I8', run)
    for at = 9, #run, 8 do
      local sequence = struct.unpack('<I8', run, at)
      if sequence >= line.resolved then
        line.known[sequence] = offset
        kept[#kept + 1] = struct.pack('<I8I8', offset, sequence)
      end
      offset = offset + 1
    end
  end
  if #kept < line.count then
    redis.call('DEL', line.stored)
    in_parts('RPUSH', line.stored, kept)
    line.count = #kept
  end
end

-- The sequence was refused: what is behind it waits (R7).
local function hold(line, sequence)
  line.holding = true
  redis.call('ZADD', line.held, text(sequence), text(sequence))
  redis.call('ZREMRANGEBYRANK', line.held, REFUSED_MAX, -1)
end

-- What is known of a message: its place, or why it is refused; nil: it is new, and may be stored now.
local function judge(line, sequence, resolved)
  raise(line, resolved)
  if sequence < line.resolved then
    return 'sequence_too_old'
  end
  local known = line.fresh[sequence]
  if not known and sequence <= line.top then
    load(line)
    known = line.known[sequence]
  end
  if known then
    return known
  end
  if line.holding then
    redis.call('ZREMRANGEBYSCORE', line.held, '-inf', '(' .. text(line.resolved))
    local least = redis.call('ZRANGE', line.held, 0, 0)[1]
    line.holding = least and true or false
    if least and sequence > tonumber(least) then
      hold(line, sequence)
      return 'out_of_sequence'
    end
  end
  if line.count >= IN_FLIGHT_MAX then
    line.known = nil
    load(line)
  end
  if line.count >= IN_FLIGHT_MAX then
    hold(line, sequence)
    return 'too_many_in_flight'
  end
  return nil
end

local function remember(line, sequence, offset)
  line.fresh[sequence] = offset
  add_run(line, offset, struct.pack('<I8', sequence))
  line.top = math.max(line.top, sequence)
  if line.holding then
    redis.call('ZREM', line.held, text(sequence))
  end
end

-- Which of a record's client ids are known: digest -> place. Buckets that passed go.
local function ids_known(prefix, n, wall, digests)
  forget_ids(prefix, n, wall)
  return find_ids(prefix, n, wall, digests)
end

-- Producers that are forgotten leave, a few with each append.
local function forget_lines(prefix, n, bucket)
  local old = redis.call('ZRANGEBYSCORE', prefix .. 'lb:' .. n,
    '-inf', '(' .. text(bucket - FORGOTTEN_BUCKETS), 'LIMIT', 0, 8)
  for _, producer in ipairs(old) do
    redis.call('HDEL', prefix .. 'l:' .. n, producer)
    redis.call('ZREM', prefix .. 'lb:' .. n, producer)
    redis.call('UNLINK', prefix .. 'ls:' .. n .. ':' .. producer,
      prefix .. 'lo:' .. n .. ':' .. producer)
  end
end

-- Written out: a library that is loading has no `string`.
local NO_DIGEST = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
  .. '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

local function columns_of(args)
  local record = {
    wall = tonumber(args[3]), bucket = tonumber(args[4]), until_ms = args[5],
    messages_max = tonumber(args[6]), bytes_max = tonumber(args[7]), refuse = args[8],
    published = args[9], checksum = args[10], header = args[11], payload = args[12],
    sizes = args[13], producers = args[14], indexes = args[15], sequences = args[16],
    message_bytes_max = tonumber(args[18]), digests = {}, listed = {},
    due_messages_max = tonumber(args[19]), due_bytes_max = tonumber(args[20]),
    due_headers = args[21], due_checksums = args[22], args = args,
  }
  record.count = #record.sizes / 4
  if #args[17] > 0 then
    for place = 1, record.count do
      local digest = string.sub(args[17], 32 * place - 31, 32 * place)
      record.digests[place] = digest
      if digest ~= NO_DIGEST then
        record.listed[#record.listed + 1] = digest
      end
    end
  end
  return record
end

-- Whether the messages of a record go to the due store: all of them do, or none.
local function is_scheduled(record)
  return #record.due_headers > 0
end

-- The code that a new message is answered with; nil: it is stored.
local function refusal(record, log, total, size)
  if record.refuse ~= '' then
    return record.refuse
  end
  if log.sealed then
    return 'storage_unavailable'
  end
  if record.message_bytes_max > 0 and size > record.message_bytes_max then
    return 'message_too_large'
  end
  if (is_scheduled(record) and log.due_next or log.next) + 1 > OFFSET_MAX then
    return 'limit_reached'
  end
  if is_scheduled(record)
    and ((record.due_messages_max > 0 and total.due_messages + 1 > record.due_messages_max)
      or (record.due_bytes_max > 0 and total.due_bytes + size > record.due_bytes_max)) then
    return 'schedule_full'
  end
  if (record.messages_max > 0 and total.messages + 1 > record.messages_max)
    or (record.bytes_max > 0 and total.bytes + size > record.bytes_max) then
    return 'queue_full'
  end
  return nil
end

-- The whole numbers of a column, so many bytes each.
local function numbers_of(column, width)
  local found = {}
  for first = 1, #column, 128 * width do
    local count = math.min(128, (#column - first + 1) / width)
    local some = {struct.unpack('<' .. string.rep('I' .. width, count), column, first)}
    for place = 1, count do
      found[#found + 1] = some[place]
    end
  end
  return found
end

local function line_in(lines, prefix, n, producer, bucket)
  local line = lines[producer]
  if not line then
    line = line_of(prefix, n, producer, bucket)
    lines[producer] = line
  end
  return line
end

-- Where message `place` of a record is its producer's, and up to where: (last place, index).
local function run_at(place, indexes, sequences)
  local index, last = indexes[place], place
  while indexes[last + 1] == index and sequences[last + 1] > sequences[last] do
    last = last + 1
  end
  return last, index
end

-- Whether all messages are new to their lines and may be stored, by their runs: then the lines
-- have them, from `offset` on. Else no line has any of them.
local function are_new(prefix, n, record, lines, offset)
  local indexes, sequences = numbers_of(record.indexes, 2), numbers_of(record.sequences, 8)
  local before, place = {}, 1
  while place <= #indexes do
    local last, index = run_at(place, indexes, sequences)
    if index > 0 then
      local at = 24 * index - 23
      local line = line_in(lines, prefix, n,
        string.sub(record.producers, at, at + 15), record.bucket)
      local resolved = struct.unpack('<I8', record.producers, at + 16)
      if resolved > line.resolved then
        if before[line] then
          break
        end
        raise(line, resolved)
      end
      before[line] = before[line] or {line.top, line.count}
      if line.holding or sequences[place] <= line.top
        or line.count + last - place + 1 > IN_FLIGHT_MAX then
        break
      end
      add_run(line, offset + place - 1, string.sub(record.sequences, 8 * place - 7, 8 * last))
      line.top = sequences[last]
    end
    place = last + 1
  end
  if place > #indexes then
    return true
  end
  for line, was in pairs(before) do
    line.top, line.count, line.runs = was[1], was[2], {}
  end
  return false
end

-- An ordinary record: every message is new, and there is room for all. nil: it is none.
local function place_ordinary(prefix, n, record, log, total, lines)
  local size = 0
  for _, one in ipairs(numbers_of(record.sizes, 4)) do
    size = size + one
  end
  if record.refuse ~= '' or log.sealed or #record.listed > 0 or is_scheduled(record)
    or log.next + record.count > OFFSET_MAX
    or (record.messages_max > 0 and total.messages + record.count > record.messages_max)
    or (record.bytes_max > 0 and total.bytes + size > record.bytes_max)
    or (record.message_bytes_max > 0 and size > record.message_bytes_max)
    or not are_new(prefix, n, record, lines, log.next) then
    return nil
  end
  log.next = log.next + record.count
  log.messages, log.bytes = log.messages + record.count, log.bytes + size
  total.messages, total.bytes = total.messages + record.count, total.bytes + size
  return {
    outcomes = {}, skips = {}, lines = lines, ids = {}, count = record.count, size = size, due = 0,
    due_size = 0,
  }
end

-- What a message that comes again is answered with, by its place. A scheduled one may have been
-- cancelled since.
local function known_outcome(prefix, n, wall, place)
  if place >= TICKET then
    local mark = fate_mark(place - TICKET)
    if find_ids(prefix, n, wall, {mark})[mark] == CANCELLED then
      return 'cancelled'
    end
  end
  return '=' .. text(place)
end

-- Put a new message, the one at `place` in its record, into the log or into the due store. Its place.
local function put(prefix, n, record, log, total, done, place, size)
  total.messages, total.bytes = total.messages + 1, total.bytes + size
  if not is_scheduled(record) then
    log.next = log.next + 1
    log.messages, log.bytes = log.messages + 1, log.bytes + size
    done.count, done.size = done.count + 1, done.size + size
    return log.next - 1
  end
  local number, width = log.due_next, #record.due_headers / record.count
  put_due(prefix, n, number, 0, size,
    struct.unpack('<I4', record.due_checksums, 4 * place - 3),
    string.sub(record.due_headers, width * (place - 1) + 1, width * place),
    record.args[22 + place])
  log.due_next = number + 1
  total.due_messages, total.due_bytes = total.due_messages + 1, total.due_bytes + size
  done.due, done.due_size = done.due + 1, done.due_size + size
  return TICKET + number
end

-- Judge the messages one by one: outcomes, what was stored of them, and the lines they changed.
local function place_each(prefix, n, record, log, total, lines, known)
  local done = {
    outcomes = {}, skips = {}, lines = lines, ids = {}, count = 0, size = 0, due = 0, due_size = 0,
  }
  for place = 1, record.count do
    local size = struct.unpack('<I4', record.sizes, 4 * place - 3)
    local index = 0
    if #record.indexes > 0 then
      index = struct.unpack('<I2', record.indexes, 2 * place - 1)
    end
    local line, sequence, outcome
    if index > 0 then
      local at = 24 * index - 23
      line = line_in(lines, prefix, n, string.sub(record.producers, at, at + 15), record.bucket)
      sequence = struct.unpack('<I8', record.sequences, 8 * place - 7)
      outcome = judge(line, sequence, struct.unpack('<I8', record.producers, at + 16))
      if type(outcome) == 'number' then
        outcome = known_outcome(prefix, n, record.wall, outcome)
      end
    end
    if not outcome then
      local digest = record.digests[place] or NO_DIGEST
      local before = known[digest]
      outcome = before and known_outcome(prefix, n, record.wall, before)
        or refusal(record, log, total, size)
      if not outcome then
        local new = put(prefix, n, record, log, total, done, place, size)
        outcome = '+' .. text(new)
        if digest ~= NO_DIGEST then
          known[digest] = new
          if not is_scheduled(record) then -- the due store has it as long as it waits there
            done.ids[#done.ids + 1] = digest
            done.ids[#done.ids + 1] = text(new)
          end
        end
        before = new
      end
      local first = string.sub(outcome, 1, 1)
      if line and (first == '+' or first == '=') then
        remember(line, sequence, before)
      elseif line then
        hold(line, sequence)
      end
    end
    if is_scheduled(record) or string.sub(outcome, 1, 1) ~= '+' then
      done.skips[#done.skips + 1] = text(place - 1)
    end
    done.outcomes[place] = outcome
  end
  return done
end

-- args: partition, level, wall ms, line bucket, id bucket ('': ids do not count), messages_max,
-- bytes_max, the code that new messages are refused with or '', published ms, checksum, header,
-- payload, and the header's columns as they stand in it: sizes, producers, indexes, sequences,
-- digests; and message_bytes_max, due_messages_max, due_bytes_max. If the messages are scheduled, the
-- headers that they have in the due store, a column of their checksums, and one payload each; then
-- there is no payload of the record. The answer: first, count, certified, next, generation, then one
-- outcome per message where not all were stored in the log: '+<place>' stored, '=<place>' duplicate,
-- or a code; a place from TICKET on is a number in the due store. If anything was scheduled, when the
-- first message there is due. Empty: no such partition.
local function append(keys, args)
  local prefix, n = prefix_of(keys), args[1]
  touch(prefix)
  local log = partition_of(prefix, n)
  if not log then
    return {}
  end
  local record, first = columns_of(args), log.next
  local row = redis.call('HMGET', prefix .. 'queue',
    'messages', 'bytes', 'due_messages', 'due_bytes')
  local total = {
    messages = tonumber(row[1]), bytes = tonumber(row[2]), due_messages = tonumber(row[3] or '0'),
    due_bytes = tonumber(row[4] or '0'),
  }
  forget_lines(prefix, n, record.bucket)
  local lines, known = {}, ids_known(prefix, n, record.wall, record.listed)
  local done = place_ordinary(prefix, n, record, log, total, lines)
    or place_each(prefix, n, record, log, total, lines, known)
  for _, line in pairs(done.lines) do
    keep_line(prefix, n, line)
  end
  remember_ids(prefix, n, record.until_ms, done.ids)
  if done.count > 0 then
    store_record(prefix, n, log, {
      level = args[2], first = first, count = done.count, size = done.size,
      skips = table.concat(done.skips, ','), published = record.published,
      checksum = record.checksum, header = record.header, payload = record.payload,
    })
    redis.call('HSET', prefix .. 'queue',
      'messages', text(total.messages), 'bytes', text(total.bytes))
  end
  local answer = {first, done.count, log.certified, log.next, log.generation}
  if #done.skips > 0 then
    for _, outcome in ipairs(done.outcomes) do
      answer[#answer + 1] = outcome
    end
  end
  if done.due > 0 then
    redis.call('HSET', prefix .. 'p:' .. n, 'due_next', text(log.due_next))
    count_due(prefix, n, log, done.due, done.due_size)
    answer[#answer + 1] = notice_due(prefix, n)
  end
  return answer
end

act('append', append)
-- The same at memory's end, for what stores nothing: duplicates and refusals.
act('append_refused', append, {'allow-oom'})

-- args: for each of some partitions, its number and an end. Copies of everything below the ends were
-- counted. For each, the certified end, and that of the log.
change('certify', function(prefix, args)
  local logs, news, ends = {}, {}, {}
  for at = 1, #args, 2 do
    logs[at] = partition_of(prefix, args[at])
    if not logs[at] then
      return refused('queue_not_found', 'the storage has no such partition')
    end
  end
  for at = 1, #args, 2 do
    certify(prefix, args[at], logs[at], tonumber(args[at + 1]), news)
    ends[at], ends[at + 1] = logs[at].certified, logs[at].next
  end
  announce(prefix, news)
  return ends
end)
