-- Inboxes: settlements and decisions that reached another gateway than the owner's (R24). They lie
-- beside the cursor: its epoch says at once what has ended, and who may answer. Nothing here is an
-- effect: the owner's cursor write is. What nobody takes expires; no clock of the store decides
-- anything else.

-- args: partition, group, id, letter, its epoch, letters and bytes at most, how many ms all of it
-- is kept. The verdicts, if it was answered; else '-': it waits.
change('post_letter', function(prefix, args)
  local n, group, id, letter = args[1], args[2], args[3], args[4]
  local epoch = redis.call('HGET', cursor_key('c', prefix, n, group), 'epoch')
  if not epoch then
    return refused('group_not_found', 'the storage has no group ' .. group .. ' here')
  end
  local letters, answers = letter_keys(prefix, n, group)
  local answered = redis.call('HGET', answers, id)
  if answered then
    return answered
  end
  if tonumber(epoch) > tonumber(args[5]) then
    redis.call('HDEL', letters, id)
    return refused('fenced', 'epoch ' .. args[5] .. ' has ended here, it is ' .. epoch)
  end
  if redis.call('HEXISTS', letters, id) == 0 then
    local size = #letter
    local waiting = redis.call('HVALS', letters)
    for _, other in ipairs(waiting) do
      size = size + #other
    end
    if #waiting >= tonumber(args[6]) or size > tonumber(args[7]) then
      return refused('overloaded', 'too much waits for the owner of this partition')
    end
    redis.call('HSET', letters, id, letter)
  end
  redis.call('PEXPIRE', letters, args[8])
  redis.call('SADD', prefix .. 'inbox', n .. ':' .. group)
  redis.call('PEXPIRE', prefix .. 'inbox', args[8])
  redis.call('PUBLISH', 'tocsin:letters:' .. prefix .. n .. ':' .. group, id)
  return '-'
end)

-- args: partition, group. id, letter, id, letter …
act('letters', function(keys, args)
  return redis.call('HGETALL', (letter_keys(prefix_of(keys), args[1], args[2])))
end, {'no-writes', 'allow-oom'})

-- Where letters wait in this queue: <partition>:<group> each.
act('letter_places', function(keys)
  return redis.call('SMEMBERS', prefix_of(keys) .. 'inbox')
end, {'no-writes', 'allow-oom'})

-- args: partition, group, the epoch that must be there, or '', how many answers are kept, for how
-- many ms, then pairs: id, verdicts. The first answer stands. 1; 0: it is not there; nothing happened.
change('answer_letters', function(prefix, args)
  local n, group = args[1], args[2]
  local epoch = redis.call('HGET', cursor_key('c', prefix, n, group), 'epoch')
  if not epoch or (args[3] ~= '' and epoch ~= args[3]) then
    return 0
  end
  local letters, answers, order = letter_keys(prefix, n, group)
  for i = 6, #args, 2 do
    redis.call('HDEL', letters, args[i])
    if redis.call('HSETNX', answers, args[i], args[i + 1]) == 1 then
      redis.call('RPUSH', order, args[i])
    end
    redis.call('PUBLISH', 'tocsin:answers:' .. string.sub(args[i], 1, ASKER_CHARS), args[i])
  end
  for _ = tonumber(args[4]) + 1, redis.call('LLEN', order) do
    redis.call('HDEL', answers, redis.call('LPOP', order))
  end
  redis.call('PEXPIRE', answers, args[5])
  redis.call('PEXPIRE', order, args[5])
  if redis.call('EXISTS', letters) == 0 then
    redis.call('SREM', prefix .. 'inbox', n .. ':' .. group)
  end
  return 1
end)
