--[[ slurm-advisor: the hook in slurmctld's submit path.

A module for the site's own job_submit.lua. It asks the daemon over a unix socket where the job would
finish first and sets what the daemon answers, all of it or nothing. Whatever goes wrong (no daemon, a
slow one, garbage, missing Lua modules), the job passes unchanged: `advisor.submit` never raises and
never returns anything but slurm.SUCCESS. Runs on Lua 5.1 (what Debian's Slurm links) to 5.4.

slurmctld calls it under its locks, so every wait is bounded: `timeout_ms` for the whole exchange, and
after `breaker_failures` failures in a row nobody is asked for `breaker_seconds`. Where the daemon has prepared its
answer to a request like this one, it is taken without any wait, and the daemon is told so in one line.
]]

local advisor = { VERSION = "0.1.0", PROTOCOL = 1 }

local settings = {
  socket = "/run/slurm-advisor/advisor.sock",
  timeout_ms = 20, -- connect, send and receive together
  disable_file = "/etc/slurm-advisor/disable", -- while it exists, nobody is asked
  breaker_failures = 3,
  breaker_seconds = 30,
}

local KIB = 1024
local MAX_TEXT = 4 * KIB
local MAX_LONG_TEXT = 64 * KIB
local MAX_REQUEST = 1024 * KIB -- the daemon refuses more
local MAX_REPLY = 64 * KIB
local MAX_MESSAGE = 1 * KIB
local MAX_KINDS = 8 -- so many requests are kept, to know them again; the daemon prepares answers for as many
local MAX_ROW = 64 -- so many prepared answers to one kind are kept, each to be used after the one before
local MAX_PIECES = 32 -- in which a row may come
local MAX_KIND = 64 * KIB -- longer requests are not kept
local SOCKET_BUFFER = 8 * KIB -- lua-socket's own
local MAX_AHEAD = 15 -- seconds: no prepared answer is good for longer, whatever it says of itself
local RENEWED = 5.2 -- seconds: those that are good for less may have been worked out anew, and are looked for

-- slurm.h: "not given" and "no limit" of 16, 32 and 64 bit fields. 64 bit values come as doubles.
local NO_VAL16, NO_VAL, INFINITE = 0xfffe, 0xfffffffe, 0xffffffff
local BEYOND_DOUBLE = 2 ^ 53

-- What the daemon may set.
local SETTABLE = { "partition", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }
local IS_SETTABLE = {}
for _, field in ipairs(SETTABLE) do IS_SETTABLE[field] = true end

local PARTITION_TEXTS = { "allow_accounts", "deny_accounts", "allow_qos", "deny_qos" }
local PARTITION_NUMBERS = {
  "max_time", "default_time", "min_nodes", "max_nodes", "max_cpus_per_node", "priority_tier",
}
-- Zero means no limit here.
local PARTITION_MEMORY = { "max_mem_per_node", "max_mem_per_cpu" }
local PARTITION_UP = 3 -- may submit (1) and may start (2)
local PARTITION_FIELDS = { "flag_default", "state_up" } -- all that is told
for _, fields in ipairs { PARTITION_TEXTS, PARTITION_NUMBERS, PARTITION_MEMORY } do
  for _, field in ipairs(fields) do PARTITION_FIELDS[#PARTITION_FIELDS + 1] = field end
end

local byte, find, format, gmatch, gsub, match, sub =
  string.byte, string.find, string.format, string.gmatch, string.gsub, string.match, string.sub
local concat, remove = table.concat, table.remove
-- What every submission calls: each name that has to be looked up, and each function of C besides, is some memory more
-- that slurmctld finds cold, ten milliseconds after the last submission.
local next, open, pcall, remove_file = next, io.open, pcall, os.remove

-- Every request begins with this. Where nothing is prepared it is sent before the rest is known, so that the daemon
-- wakes up meanwhile.
local KNOCK = format('{"v":%d,"op":"submit"', advisor.PROTOCOL)
-- So begins what the daemon sends unasked: answers to requests of a kind, after how many turns the first of them holds,
-- how many there are, their number, that of those which must have been used up just before (0: whatever was), and until
-- when they are good.
local PREPARED = format(
  '^{"v":%d,"prepared":(%%d+),"after":(%%d+),"count":(%%d+),"number":(%%d+),"follows":(%%d+),"until":([%%d.]+),',
  advisor.PROTOCOL
)
-- And this: none of them holds any more.
local TAKEN_BACK = format('{"v":%d,"prepared":0}', advisor.PROTOCOL)
-- The daemon does not wait for what comes on a connection that begins with this, but looks there now and then: waking
-- it up would cost more than all the rest.
local NOTES = format('{"v":%d,"op":"notes"}\n', advisor.PROTOCOL)
local USED = format('{"v":%d,"op":"used","number":', advisor.PROTOCOL)
local AT_PLACE = {} -- what follows the number, by place
for place = 0, MAX_ROW - 1 do AT_PLACE[place] = format(',"place":%d}\n', place) end

-- What a request tells, in this order: the names in job_desc and on the wire, what a value is, and its limit.
local FIELDS, KEYS, FORMS, LIMITS, PLACE = {}, {}, {}, {}, {}
local TEXT, WHOLE, NUMBER = 1, 2, 3
local ON_THE_WIRE = { array_inx = "array", het_job_offset = "het_offset" }

local function tells(form, limit, ...)
  for _, field in ipairs { ... } do
    local n = #FIELDS + 1
    FIELDS[n], KEYS[n] = field, format(',"%s":', ON_THE_WIRE[field] or field)
    FORMS[n], LIMITS[n], PLACE[field] = form, limit, n
  end
end

-- Cut short, these would mean something else, or come back shortened: a job with one that is too long is
-- not asked about at all.
tells(WHOLE, MAX_TEXT, "features", "partition", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")
tells(TEXT, MAX_TEXT, "name", "prefer", "licenses", "reservation", "req_nodes", "exc_nodes", "clusters",
  "cpus_per_tres", "mem_per_tres", "dependency", "array_inx")
tells(TEXT, MAX_LONG_TEXT, "comment", "extra")
tells(NUMBER, NO_VAL, "time_limit", "time_min", "min_cpus", "num_tasks", "min_nodes", "max_nodes", "het_job_offset")
tells(NUMBER, NO_VAL16, "cpus_per_task", "ntasks_per_node", "ntasks_per_tres", "shared")
tells(NUMBER, BEYOND_DOUBLE, "begin_time")
tells(TEXT, MAX_TEXT, "account", "qos")
-- slurmctld answers nil unless the user asked for it: --mem and --mem-per-cpu share one field.
tells(NUMBER, BEYOND_DOUBLE, "min_mem_per_node")
local SIMPLE = #FIELDS -- up to here a field is just read; `read_request` knows about the others
tells(NUMBER, BEYOND_DOUBLE, "min_mem_per_cpu")
tells(TEXT, MAX_TEXT, "default_account", "default_qos")
tells(NUMBER, NO_VAL, "uid")
tells(TEXT, MAX_TEXT, "user")
tells(TEXT, MAX_LONG_TEXT, "script_head")
local ACCOUNT, QOS, MEMORY = PLACE.account, PLACE.qos, PLACE.min_mem_per_node
local TOLD = #FIELDS
-- slurmctld gives the environment by name only; these are the names that mean something to us.
local ENVIRONMENT = { "ADVISOR", "ADVISOR_APP", "ADVISOR_DFG" }
-- After the fields, a submission's values hold these, whether it is a batch job, and its list of partitions.
local BATCH = TOLD + #ENVIRONMENT + 1
local PARTITIONS = BATCH + 1

-- Log ----------------------------------------------------------------------------------------------

local slurm = rawget(_G, "slurm")
if type(slurm) ~= "table" then slurm = {} end
local SUCCESS = slurm.SUCCESS or 0

-- `level` names a function of slurmctld's table. A log that fails must not hurt the job.
local function log(level, text)
  pcall(function() slurm[level]("%s", "advisor: " .. text) end)
end

-- Modules ------------------------------------------------------------------------------------------

local gettime, new_socket, json -- nil: a module is missing and every job is left alone

local function load_modules()
  local socket = require "socket"
  local unix = require "socket.unix"
  local cjson = require "cjson"
  gettime = socket.gettime -- loading `socket` also makes the process ignore SIGPIPE
  -- Older releases of lua-socket return the constructor itself, newer ones a table of them.
  new_socket = type(unix) == "table" and (unix.stream or unix.tcp) or unix
  -- An instance of our own: the site's scripts may have set up the shared one for themselves.
  json = cjson.new and cjson.new() or cjson
  json.decode_max_depth(8)
  json.decode_invalid_numbers(false)
end

do
  local loaded, why = pcall(load_modules)
  if not loaded then
    json = nil
    why = tostring(why):match("^[^\n]*")
    log("log_error", "every job passes unchanged, a Lua module is missing; install lua-socket and lua-cjson "
      .. "for " .. tostring(_VERSION) .. ", then touch job_submit.lua: " .. why)
  end
end

-- Request ------------------------------------------------------------------------------------------

local UTF8_SEQUENCES = { -- Unicode, table 3-7, beyond ASCII
  "[\194-\223][\128-\191]",
  "[\225-\236\238\239][\128-\191][\128-\191]",
  "[\241-\243][\128-\191][\128-\191][\128-\191]",
  "\224[\160-\191][\128-\191]",
  "\237[\128-\159][\128-\191]",
  "\240[\144-\191][\128-\191][\128-\191]",
  "\244[\128-\143][\128-\191][\128-\191]",
}

-- cjson passes bytes through, but JSON is UTF-8. In a text that is not, all but ASCII becomes `?`.
local function as_utf8(text)
  if not find(text, "[\128-\255]") then return text end
  local rest = gsub(text, "[%z\1-\127]+", "?") -- mostly next to nothing, so what follows is short
  for _, sequence in ipairs(UTF8_SEQUENCES) do
    rest = gsub(rest, sequence, "?")
    if not find(rest, "[\128-\255]") then return text end
  end
  return (gsub(text, "[\128-\255]", "?"))
end

local function text_of(value, limit)
  if type(value) ~= "string" or value == "" then return nil end
  if #value > limit then value = sub(value, 1, limit) end
  return as_utf8(value)
end

local function number_of(value, unset)
  if type(value) ~= "number" or not (value >= 0 and value < unset) then return nil end
  return value
end

-- The lines that sbatch itself looks through for #SBATCH: comments and blank lines from the top.
-- Only the head is copied and looked at, however long the script is.
local function comment_block(script)
  local head = sub(script, 1, MAX_LONG_TEXT)
  local at, size = 1, #head
  while at <= size do
    local first = find(head, "[^ \t\r\f\v]", at)
    if not first then break end -- blanks up to the end
    local what = byte(head, first)
    if what == 10 then
      at = first + 1
    elseif what == 35 then -- '#'
      at = (find(head, "\n", first, true) or size) + 1
    else
      return text_of(sub(head, 1, at - 1), MAX_LONG_TEXT)
    end
  end
  return text_of(head, MAX_LONG_TEXT)
end

-- What is told of a partition, as slurmctld has it.
local function read_partition(record)
  local read = {}
  for _, field in ipairs(PARTITION_FIELDS) do read[field] = record[field] or false end
  return read
end

local function reads_as(record, read)
  for _, field in ipairs(PARTITION_FIELDS) do
    if (record[field] or false) ~= read[field] then return false end
  end
  return true
end

local function encode_partition(name, read)
  local limits = { name = as_utf8(name) } -- what the protocol takes for granted is not sent
  if read.flag_default == 1 then limits.default = true end
  if (tonumber(read.state_up) or 0) % 4 ~= PARTITION_UP then limits.up = false end
  for _, field in ipairs(PARTITION_TEXTS) do limits[field] = text_of(read[field], MAX_TEXT) end
  for _, field in ipairs(PARTITION_NUMBERS) do limits[field] = number_of(read[field], NO_VAL) end
  for _, field in ipairs(PARTITION_MEMORY) do
    local limit = number_of(read[field], BEYOND_DOUBLE)
    limits[field] = limit ~= 0 and limit or nil
  end
  return json.encode(limits)
end

-- Reading a partition's limits costs more than the rest of a request, and a burst of submissions reads
-- the same ones again. So they are kept for a second; which partitions the user may use never is.
local KEEP_PARTITIONS, KEEP_NAMES = 1, 300
local partition_cache, partitions_read = {}, 0 -- by name: what was read, and its text
local name_cache, names_read = {}, 0

local function fresh(read, keep, now) return now >= read and now - read < keep end

-- The text of the list as a whole, and of each in it its name and what is kept of it, in the order of `next`.
local list_names, list_kept, list_text = {}, {}, nil

local function same_list(part_list)
  local n = 0
  for name in next, part_list do
    n = n + 1
    if list_names[n] ~= name then return false end
  end
  return list_names[n + 1] == nil
end

-- Whether the same list reads as it did: mostly, and then nothing has to be put together anew.
local function reads_as_kept(part_list)
  local n = 0
  for name, record in next, part_list do
    n = n + 1
    if not reads_as(record, list_kept[n].read) then return false end
    partition_cache[name] = list_kept[n]
  end
  return true
end

local function encode_partitions(part_list, now)
  local same = list_text and same_list(part_list)
  if not fresh(partitions_read, KEEP_PARTITIONS, now) then
    partition_cache, partitions_read = {}, now
    same = same and reads_as_kept(part_list)
  end
  if same then return list_text end
  local encoded, n = {}, 0
  list_names, list_kept = {}, {}
  for name, record in next, part_list do
    local kept = partition_cache[name]
    if not kept then
      kept = { read = read_partition(record) }
      kept.text = encode_partition(name, kept.read)
      partition_cache[name] = kept
    end
    n = n + 1
    encoded[n], list_names[n], list_kept[n] = kept.text, name, kept
  end
  list_text = ',"partitions":[' .. concat(encoded, ",") .. "]}\n"
  return list_text
end

-- slurmctld looks the name up in the password database each time, which may be a directory service.
local function user_name(job_desc, uid, now)
  if not fresh(names_read, KEEP_NAMES, now) then
    name_cache, names_read = {}, now
  end
  local name = name_cache[uid]
  if name == nil then
    name = text_of(job_desc.user_name, MAX_TEXT) or false
    name_cache[uid] = name
  end
  return name or nil
end

-- Where the job names no account or QOS, slurmctld tells the user's default one, and goes through the associations for
-- it. A burst of submissions asks for the same ones again; kept as long as the partitions are.
local defaults = { read = 0 } -- of one user, account and partition

local function read_defaults(job_desc, uid, account, qos, partition, now)
  local kept = defaults
  if kept.uid == uid and kept.account == account and kept.partition == partition and kept.qos == qos
    and fresh(kept.read, KEEP_PARTITIONS, now) then
    return kept.default_account, kept.default_qos
  end
  kept.uid, kept.account, kept.qos, kept.partition, kept.read = uid, account, qos, partition, now
  kept.default_account = not account and job_desc.default_account or false
  kept.default_qos = not qos and job_desc.default_qos or false
  return kept.default_account, kept.default_qos
end

-- What the submission at hand tells, by place in FIELDS; false: not given.
local values = {}

local last_script, last_head -- of the last job that was not too long to be kept: users submit alike jobs

local function head_of(script)
  if script == last_script then return last_head end
  local head = comment_block(script) or false
  if #script <= MAX_KIND then last_script, last_head = script, head end
  return head
end

-- Reads what a request tells. The environment of a batch job, false for srun and salloc.
local function read_request(job_desc, part_list, submit_uid, now)
  for n = 1, SIMPLE do values[n] = job_desc[FIELDS[n]] or false end
  local n = SIMPLE
  values[n + 1] = not values[MEMORY] and job_desc.min_mem_per_cpu or false
  if values[ACCOUNT] == "" then values[ACCOUNT] = false end
  if values[QOS] == "" then values[QOS] = false end
  -- The job's owner: root may submit for another user, and part_list is the owner's.
  local uid = number_of(job_desc.user_id, NO_VAL) or number_of(submit_uid, NO_VAL)
  values[n + 2], values[n + 3] =
    read_defaults(job_desc, uid, values[ACCOUNT], values[QOS], values[PLACE.partition], now)
  values[n + 4], values[n + 5] = uid or false, uid and user_name(job_desc, uid, now) or false
  local script, environment = job_desc.script, false
  local batch = type(script) == "string"
  values[n + 6] = batch and head_of(script)
  values.script = not batch or #script <= MAX_KIND and script -- not told, but known again; false: too long for that
  if batch then -- slurmctld has no environment for srun and salloc, and logs a line if asked
    environment = job_desc.environment
    for i = 1, #ENVIRONMENT do values[TOLD + i] = environment[ENVIRONMENT[i]] or false end
  else
    for i = 1, #ENVIRONMENT do values[TOLD + i] = false end
  end
  values[BATCH], values[PARTITIONS] = batch, encode_partitions(part_list, now)
  return environment
end

-- Texts as JSON. Users submit alike jobs, so the same few come again; forgotten when there are many.
local KEEP_BYTES = 256 * KIB
local quoted, quoted_bytes = {}, 0

local function quote(value, longest)
  local text = #value <= longest and quoted[value]
  if text then return text end
  text = json.encode(text_of(value, longest))
  if #value <= longest then
    quoted_bytes = quoted_bytes + #value + #text
    if quoted_bytes > KEEP_BYTES then quoted, quoted_bytes = {}, #value + #text end
    quoted[value] = text
  end
  return text
end

-- A request is put together here, piece by piece. The table is kept: what a submission leaves behind, slurmctld's
-- Lua has to collect, and with it walks over the records of all jobs.
local pieces = {}

-- The line of a request that tells `values`, and how many bytes these have; or nil and why nobody is asked.
local function encode_request(kind)
  pieces[1], pieces[2] = KNOCK, values[BATCH] and ',"batch":true' or ',"batch":false'
  pieces[3] = kind and format(',"kind":%d,"row":%d', kind, MAX_ROW) or ""
  local count, bytes = 3, 0
  for n = 1, TOLD do
    local value, form, longest = values[n], FORMS[n], LIMITS[n]
    if form == NUMBER then
      -- Asking for no limit is not the same as leaving the limit to the partition: it exceeds every limit.
      if value == INFINITE and FIELDS[n] == "time_limit" then longest = BEYOND_DOUBLE end
      if FIELDS[n] == "begin_time" and value == 0 then value = false end
      if number_of(value, longest) then
        pieces[count + 1], pieces[count + 2] = KEYS[n], format("%.14g", value)
        count = count + 2
      end
    elseif type(value) == "string" and value ~= "" then
      if form == WHOLE and #value > longest then return nil, FIELDS[n] .. " is too long" end
      pieces[count + 1], pieces[count + 2] = KEYS[n], quote(value, longest)
      count, bytes = count + 2, bytes + #value
    end
  end
  local ours
  for i = 1, #ENVIRONMENT do
    local text = text_of(values[TOLD + i], MAX_LONG_TEXT)
    if text then
      ours, bytes = ours or {}, bytes + #values[TOLD + i]
      ours[ENVIRONMENT[i]] = text
    end
  end
  if ours then
    pieces[count + 1], pieces[count + 2] = ',"environment":', json.encode(ours)
    count = count + 2
  end
  -- Spliced in rather than encoded with the rest: cjson cannot tell an empty list from an object.
  count = count + 1
  pieces[count] = values[PARTITIONS]
  local line = concat(pieces, "", 1, count)
  if #line > MAX_REQUEST then return nil, "the request would be " .. #line .. " bytes" end
  return line, bytes
end

-- Kinds of requests: those that read alike are of one kind, and the last few kinds are known again. Then nothing has
-- to be put together, and the daemon may have prepared an answer.
local kinds, newest_kind, turn = {}, 0, 0
local NO_KIND, NO_ROW = {}, {} -- the latter is of no era

local function is_of(kind)
  local known = kind.values
  for n = 1, PARTITIONS do
    if known[n] ~= values[n] then return false end
  end
  return true
end

-- The kind of the submission that was read: its `line` is the request; or nil and why nobody is asked.
local function kind_of_request()
  turn = turn + 1
  local oldest
  for i = 1, #kinds do
    local kind = kinds[i]
    if is_of(kind) then
      kind.turn = turn
      kind.values.script = values.script
      return kind
    end
    if not oldest or kind.turn < kinds[oldest].turn then oldest = i end
  end
  local line, bytes = encode_request(newest_kind + 1)
  if not line then return nil, bytes end
  if #line + bytes > MAX_KIND then
    NO_KIND.line = encode_request(nil)
    return NO_KIND
  end
  newest_kind = newest_kind + 1
  local kind = {
    id = format("%d", newest_kind), line = line, values = values, turn = turn,
    row = NO_ROW, -- answers that were prepared for it
  }
  values = {}
  kinds[#kinds < MAX_KINDS and #kinds + 1 or oldest] = kind
  return kind
end

-- Exchange -----------------------------------------------------------------------------------------

local connection -- kept between submissions, as long as slurmctld keeps this Lua state
local notes -- another one, once there is something to tell that needs no answer
local turns = 0 -- requests and notes since connected
-- What was prepared holds as long as this stays; `latest_after`: and as long as no more turns were taken.
local era, latest_after = 0, -1
local used_up -- the number of the prepared answers of which the last submission took the last one

local function forget_prepared() era, latest_after = era + 1, -1 end

local function disconnect()
  if connection then pcall(connection.close, connection) end
  if notes then pcall(notes.close, notes) end
  connection, notes, turns, used_up = nil, nil, 0, nil
  forget_prepared()
end

-- Seconds left, never more than the whole (the clock may have been set back), nil if none is left.
local function remaining(deadline)
  local left = deadline - gettime()
  local whole = settings.timeout_ms / 1000
  if left > whole then left = whole end
  return left > 0 and left or nil
end

-- Makes the next call on the connection give up at the deadline. "t" bounds the call as a whole.
local function limit(conn, deadline)
  local left = remaining(deadline)
  if not left then return nil, "timeout" end
  conn:settimeout(left, "t")
  return true
end

local function connect(deadline)
  local conn, why = new_socket()
  if not conn then return nil, why end
  local in_time, connected
  in_time, why = limit(conn, deadline)
  if in_time then connected, why = conn:connect(settings.socket) end
  if connected then return conn end
  conn:close()
  return nil, why
end

local function kind_by(id)
  for i = 1, #kinds do
    if kinds[i].id == id then return kinds[i] end
  end
end

-- Whether a line is something that was prepared, which is then put aside: it is read when it is needed.
local function put_aside(line)
  local id, after, count, number, follows, until_ = match(line, PREPARED)
  if not id then
    if line ~= TAKEN_BACK then return false end
    forget_prepared()
    return true
  end
  local kind = kind_by(id)
  if not kind then return true end -- nobody will ask for it any more
  local row = kind.row
  if row.era ~= era or follows == "0" or #row == MAX_PIECES then
    row = { era = era } -- in place of what was there
    kind.row = row
  end
  after, until_ = tonumber(after), tonumber(until_)
  local last = after + tonumber(count) - 1
  if last < after or last - after >= MAX_ROW or not until_ then return false end
  row[#row + 1] = {
    line = line, after = after, last = last, number = number, follows = follows, until_ = until_,
    used = 0, -- so many of them
  }
  if last > latest_after then latest_after = last end
  return true
end

-- A kept connection is good if it is open and nothing but prepared answers has come, in whole lines. Whatever else
-- the daemon sent unasked, or too late, must not be taken for the next answer.
local function in_order(conn) -- which waits for nothing since its last reply was read
  local bytes = 0
  repeat
    local line, why, part = conn:receive() -- a line
    if not line then return why == "timeout" and part == "" end
    bytes = bytes + #line + 1
    if bytes > MAX_REPLY or not put_aside(line) then return false end
    -- What has come is read all at once, as far as it fits into lua-socket's buffer.
  until bytes < SOCKET_BUFFER and not conn:dirty()
  return true
end

-- Takes in what has come unasked.
local function look()
  if connection and not in_order(connection) then disconnect() end
end

-- One line without its newline, or nil and why; the third result tells that nothing at all came.
local function receive_line(conn, deadline)
  local received, size = {}, 0
  while true do
    local in_time, why = limit(conn, deadline)
    if not in_time then return nil, why end
    local first
    first, why = conn:receive(1) -- waits; the rest of what has come is then taken without waiting
    if not first then
      if size > 0 and why == "closed" then why = "closed in the middle of the reply" end
      return nil, why, size == 0
    end
    conn:settimeout(0, "t")
    local whole, _, part = conn:receive(MAX_REPLY - size)
    local piece = first .. (whole or part or "")
    size = size + #piece
    received[#received + 1] = piece
    if find(piece, "\n", 1, true) then
      local text, at = concat(received), 1
      local newline = find(text, "\n", 1, true)
      local reply
      while newline do
        local line = sub(text, at, newline - 1)
        if not put_aside(line) then
          if reply then return nil, "more than one line in reply" end
          reply = line
        end
        at = newline + 1
        newline = find(text, "\n", at, true)
      end
      if reply and at <= #text then return nil, "more than one line in reply" end
      if reply then return reply end
      received = { sub(text, at) } -- so far only what was prepared before the request came
    end
    if size >= MAX_REPLY then return nil, "reply of more than " .. MAX_REPLY .. " bytes" end
  end
end

local function converse(conn, line, from, deadline)
  local in_time, why = limit(conn, deadline)
  if not in_time then return nil, why end
  forget_prepared() -- worked out without what is now asked
  local sent
  sent, why = conn:send(line, from)
  if not sent then return nil, why, true end
  turns = turns + 1
  return receive_line(conn, deadline)
end

-- Begins a request on the kept connection, or on a new one: whether it was a kept one, or nil and why not.
local function knock(deadline)
  if connection then
    if connection:send(KNOCK) then return true end
    disconnect() -- closed: the daemon was restarted
  end
  local why
  connection, why = connect(deadline)
  if connection then
    local sent
    sent, why = connection:send(KNOCK)
    if sent then return false end
    disconnect()
  end
  return nil, why
end

-- The reply to a request, of which the first `knocked` bytes were sent on the connection, or nil and why. A kept
-- connection that turns out to be closed means that the daemon was restarted: asked again on a new one, within the
-- same deadline.
local function exchange(line, knocked, kept, deadline)
  local reply, why, nothing_came
  if connection then
    reply, why, nothing_came = converse(connection, line, knocked + 1, deadline)
    if reply or not (kept and why == "closed" and nothing_came) then return reply, why end
    disconnect()
  end
  connection, why = connect(deadline)
  if not connection then return nil, why end
  reply, why = converse(connection, line, 1, deadline)
  return reply, why
end

-- Tells that an answer is used, by number and place; whether it could be told. The daemon takes answers back by not
-- listening any more.
local function note(number, place, deadline)
  local line = USED .. number .. AT_PLACE[place]
  if not notes then
    notes = connect(deadline)
    -- Whoever listens now may not be the one who prepared the answer.
    if not notes or not in_order(connection) then return false end
    notes:settimeout(0, "t")
    line = NOTES .. line
  end
  if not notes:send(line) then return false end
  turns = turns + 1
  return true
end

local function end_notes()
  if notes then pcall(notes.close, notes) end
  notes = nil
  forget_prepared()
end

-- Reply --------------------------------------------------------------------------------------------

local function usable_partitions(value, part_list)
  if find("," .. value .. ",", ",,", 1, true) then return false end
  for name in gmatch(value, "[^,]+") do
    if part_list[name] == nil then return false end
  end
  return true
end

local function word(value)
  return type(value) == "string" and #value <= MAX_TEXT and find(value, "^[!-~]+$") ~= nil
end

local function given(reply, field)
  local value = reply[field]
  if value ~= json.null then return value end
end

local NOTHING = {} -- never written to

-- A message as the user is told it; nil where nothing is left of it.
local function one_line(message)
  if #message > MAX_MESSAGE or not find(message, "^[ -~]*$") then -- the fastest way to ask; mostly it is
    message = as_utf8((gsub(sub(message, 1, MAX_MESSAGE), "%c+", " ")))
  end
  return find(message, "%S") and message or nil
end

-- Whether these fields may be set, and so, whoever may use the partition; or false and why not.
local function settable(set)
  for field, value in pairs(set) do
    if not IS_SETTABLE[field] then return false, "may not set " .. sub(tostring(field), 1, 40) end
    if not word(value) and (field ~= "partition" or type(value) ~= "string") then
      return false, "bad value for " .. field
    end
  end
  return true
end

local function is_token(value)
  return type(value) == "string" and #value <= 128 and find(value, "^[%w._-]+$") ~= nil
end

-- The fields to set, the token and the message of a reply, checked to the last value; or nil and what is wrong.
local function judge(text, part_list)
  local decoded, reply = pcall(json.decode, text)
  if not decoded then return nil, "reply is not JSON" end
  if type(reply) ~= "table" then return nil, "reply is not an object" end
  if given(reply, "v") ~= advisor.PROTOCOL then
    return nil, "reply has protocol version " .. sub(tostring(given(reply, "v")), 1, 20) .. ", not "
      .. advisor.PROTOCOL .. ": install the hook and the daemon of one release"
  end
  -- The daemon is well and refuses this one request; that must not open the breaker for others.
  if given(reply, "error") ~= nil then return NOTHING end

  local action, token, message = given(reply, "action") or "keep", given(reply, "token"), given(reply, "message")
  local set = given(reply, "set")
  if set == nil then set = NOTHING end
  if action ~= "keep" and action ~= "rewrite" then return nil, "unknown action" end
  if type(set) ~= "table" then return nil, "set is not an object" end
  if (next(set) ~= nil) ~= (action == "rewrite") then return nil, "action does not fit the fields to set" end
  if token ~= nil and not is_token(token) then return nil, "token is not a word" end
  if message ~= nil then
    if type(message) ~= "string" then return nil, "message is not text" end
    message = one_line(message)
  end
  local may, why = settable(set)
  if not may then return nil, why end
  if set.partition and not usable_partitions(set.partition, part_list) then
    return nil, "partition is not one that this user may use"
  end
  return set, token, message
end

-- The piece of a row that holds the answer to this submission, and its place there; nil where there is none.
local function next_answer(row)
  local piece = row[1]
  while piece and piece.last < turns do
    remove(row, 1)
    piece = row[1]
  end
  if not piece or turns < piece.after then return nil end
  local place = turns - piece.after
  -- Worked out after the one before it, which was not used.
  if place ~= piece.used then return nil end
  if place == 0 and piece.follows ~= "0" and piece.follows ~= used_up then return nil end
  return piece, place
end

-- So many answers of this piece are used now, the last of them by this submission or the one before. All but what
-- follows it was worked out without it.
local function took(row, piece, used)
  era, used_up = era + 1, piece.after + used > piece.last and piece.number or nil
  row.era, piece.used = era, used
end

-- An answer is three values: its token, and which of the sets and messages it has; "" and 0: none.
local function read_answers(answers, count, sets, says)
  for at = 1, 3 * count, 3 do
    local token, set, message = answers[at], answers[at + 1], answers[at + 2]
    if not (token == "" or is_token(token)) then return false end
    if not (set == 0 or type(set) == "number" and type(sets[set]) == "table") then return false end
    if not (message == 0 or type(message) == "number" and says[message] ~= nil) then return false end
  end
  return true
end

-- Takes a piece apart and checks it to the last value, but for which partitions the user may use: all at once, which is
-- faster than one by one when they are needed. Whether it is as it should be.
local function read_piece(piece)
  local decoded, told = pcall(json.decode, piece.line)
  if not decoded then return false end
  local sets, says, answers = told.sets, told.says, told.answers
  if type(sets) ~= "table" or type(says) ~= "table" or type(answers) ~= "table" then return false end
  for i = 1, #sets do
    if type(sets[i]) ~= "table" or not settable(sets[i]) then return false end
  end
  for i = 1, #says do
    if type(says[i]) ~= "string" then return false end
    says[i] = one_line(says[i]) or false
  end
  if not read_answers(answers, piece.last - piece.after + 1, sets, says) then return false end
  piece.line, piece.sets, piece.says, piece.answers = false, sets, says, answers
  return true
end

-- What stands at a place of a piece: the fields to set, the token and the message; nil where the user may not use the
-- partition.
local function read_answer(piece, place, part_list)
  local answers, at = piece.answers, 3 * place
  local token, set = answers[at + 1], piece.sets[answers[at + 2]] or NOTHING
  local partition = set.partition
  if partition and part_list[partition] == nil and not usable_partitions(partition, part_list) then return nil end
  return set, token ~= "" and token or nil, piece.says[answers[at + 3]] or nil
end

-- As `judge`, of the answer that was prepared for this kind; nil where there is none that holds. The daemon is told
-- that it is used, before it is: what nobody can be told of is not used.
local function use_prepared(kind, part_list, now, deadline, only_new)
  local row = kind.row
  if not row or row.era ~= era then return nil end
  local piece, place = next_answer(row)
  if not piece then return nil end
  local set, token, message
  if not piece.line or read_piece(piece) then set, token, message = read_answer(piece, place, part_list) end
  if not set then
    disconnect() -- nonsense: who prepares it is asked anew
    return nil
  end
  local left = piece.until_ - now
  -- The clock may have been set back.
  if not (left > 0 and left <= MAX_AHEAD) then return nil end
  if only_new and left < RENEWED then return nil end
  if not note(piece.number, place, deadline) then
    end_notes()
    return nil
  end
  took(row, piece, place + 1)
  return set, token, message
end

-- Job ----------------------------------------------------------------------------------------------

local function put(job_desc, field, value) job_desc[field] = value end

-- The environment comes last because a variable that was not there cannot be taken away again.
local function put_everything(job_desc, set, comment, environment, token, set_variable)
  for field, value in next, set do job_desc[field] = value end
  if comment then job_desc.admin_comment = comment end
  if not (token and environment) then return end
  if set_variable then -- slurmctld's own, where it is at hand
    set_variable(job_desc, "ADVISOR_TOKEN", token)
  else
    environment.ADVISOR_TOKEN = token
  end
end

-- What was put before something could not be.
local function take_back(job_desc, told, set, comment, already)
  for field in pairs(set) do pcall(put, job_desc, field, told[PLACE[field]] or "") end -- "": Slurm's "not given"
  if comment then pcall(put, job_desc, "admin_comment", already or "") end
end

-- Sets every field or none: true, or false and why.
local function apply(job_desc, told, set, token, environment)
  local already, comment
  if token then
    already, comment = job_desc.admin_comment, "advisor=" .. token
    if already and already ~= "" then comment = already .. " " .. comment end -- what the site's own rules wrote there
  end
  local done, why = pcall(put_everything, job_desc, set, comment, environment, token)
  if not done then take_back(job_desc, told, set, comment, already) end
  return done, why
end

-- slurmctld's log_user puts a text together and calls this.
local function tell_user(text)
  if slurm.user_msg then
    pcall(slurm.user_msg, text)
  else
    pcall(slurm.log_user, "%s", text)
  end
end

-- Submission ---------------------------------------------------------------------------------------

local failures = 0 -- in a row
local opened -- when the breaker opened, or was tried again in vain; nil: closed
local disabled = false
local complained -- when something other than the daemon last went wrong

local function failed(why)
  failures = failures + 1
  if opened then
    opened = gettime()
  elseif failures >= settings.breaker_failures then
    opened = gettime()
    log("log_error", failures .. " failures in a row, jobs pass unchanged and the daemon is tried every "
      .. settings.breaker_seconds .. " s; last at " .. settings.socket .. ": " .. tostring(why))
  end
end

local function answered()
  failures = 0
  if opened then
    opened = nil
    log("log_info", "the daemon answers again")
  end
end

local function complain(why)
  local now = gettime and gettime() or os.time()
  if complained and fresh(complained, settings.breaker_seconds, now) then return end
  complained = now
  log("log_error", "job passes unchanged: " .. tostring(why))
end

--[[ Every submission asks for the disable file, which is mostly not there, in half the time that opening it would take.
A path that ends in "/." names nothing that can be removed (unlink and rmdir refuse it, whatever stands there), but the
kernel goes along it and says where it ends: "no such file" where there is none. Whatever else it says, the file is
opened, which decides.
]]
local NO_SUCH_FILE = 2
local in_disable_file = settings.disable_file .. "/."
local known_words -- what it says, kept so that Lua finds the words again instead of making them anew

-- Whether jobs are left alone.
local function switched_off()
  local file = open(settings.disable_file)
  if file then file:close() end
  local off = file ~= nil
  if off ~= disabled then
    disabled = off
    log("log_info", (off and "off" or "on again") .. " (" .. settings.disable_file .. ")")
  end
  return off
end

-- The short way ------------------------------------------------------------------------------------

--[[ Users submit the same script again and again: then most submissions are like the one before, and the answer is at
hand. slurmctld comes every few milliseconds and finds memory cold that others have used meanwhile, so the time goes by
how many places of it are touched: what is needed stands together here, and little else is called. The first difference
ends it, before anything is done; then the submission goes the ordinary way. (Made by a function of its own because one
function, and a file is one, has 200 local variables at most.)
]]
local go_short_way, enter_short_way, leave_short_way

local function make_short_way()
  local next_of, call, put_all, tell, nothing = next, pcall, put_everything, slurm.user_msg, NOTHING
  local fields, last_field, at_place = {}, SIMPLE, AT_PLACE
  for n = 1, SIMPLE do fields[n] = FIELDS[n] end
  local uid_at, cpu_memory_at, memory_at = SIMPLE + 4, SIMPLE + 1, MEMORY
  local variable, variables, last_told = ENVIRONMENT, #ENVIRONMENT, TOLD
  local known, script, names, row, piece, answers, sets, says, begins, notes_to, send
  local place, count, first = 0, 0, 0 -- the next answer, how many there are, and the first that was taken here
  local since, good_until = 0, 0
  local limits, concerned, checked_until = nil, nil, 0 -- the partitions that answers of the piece may bring jobs to

  -- The partitions that these answers set, and those where a job stays to which nothing is set.
  local function concerned_by(asked, told)
    local found, named = {}, {}
    for name in gmatch(asked or "", "[^,]+") do named[name] = true end
    for i = 1, #told do
      for name in gmatch(told[i].partition or "", "[^,]+") do named[name] = true end
    end
    for i = 1, #list_names do
      local name = list_names[i]
      if named[name] or not asked and list_kept[i].read.flag_default == 1 then found[#found + 1] = name end
    end
    return found
  end

  --[[ The functions that slurmctld's tables call (22.05 to 26.05 have them as globals). Past the tables, the job is not
  looked up anew for each field, and no table is made for its environment: a seventh of the short way. Where a release
  lacks one, or the site's own script hands over a table that it made itself, the tables are read as ever. ]]
  local field_of, variable_of, set_variable =
    rawget(_G, "_get_job_req_field_name"), rawget(_G, "_get_job_env_field_name"), rawget(_G, "_set_job_env_field")
  local all_there = type(field_of) == "function" and type(variable_of) == "function"
    and type(set_variable) == "function"
  local behind, kind_of_value = getmetatable, type

  local function at(of, name) return of[name] end

  -- Whether what is kept for all requests is still so, as far as it concerns these answers. They were worked out from
  -- the rest as well, but do not live long enough for that to matter.
  local function still_holds(job_desc, part_list, now)
    for i = 1, #concerned do
      local name = concerned[i]
      local kept = limits[name]
      if not kept or not reads_as(part_list[name], kept.read) then return false end
    end
    if not known[ACCOUNT] and (job_desc.default_account or false) ~= known[SIMPLE + 2] then return false end
    if not known[QOS] and (job_desc.default_qos or false) ~= known[SIMPLE + 3] then return false end
    checked_until = now + KEEP_PARTITIONS
    return true
  end

  -- Whether the submission was answered.
  function go_short_way(job_desc, part_list, now)
    if place == count or now < since or now >= good_until then return false end
    local as, of, read, read_variable, setter = known, job_desc, at, at, nil
    if all_there then
      local meta = behind(job_desc)
      local job = kind_of_value(meta) == "table" and meta._job_desc
      if kind_of_value(job) == "userdata" then
        of, read, read_variable, setter = job, field_of, variable_of, set_variable
      end
    end
    if read(of, "user_id") ~= as[uid_at] then return false end
    for i = 1, last_field do
      if (read(of, fields[i]) or false) ~= as[i] then return false end
    end
    if not as[memory_at] and (read(of, "min_mem_per_cpu") or false) ~= as[cpu_memory_at] then return false end
    if read(of, "script") ~= script then return false end
    local environment = false
    if script then
      environment = read == at and job_desc.environment or of
      for i = 1, variables do
        if (read_variable(environment, variable[i]) or false) ~= as[last_told + i] then return false end
      end
    end
    local n = 0
    for name in next_of, part_list do
      n = n + 1
      if names[n] ~= name then return false end
    end
    if names[n + 1] then return false end
    if now >= checked_until and not still_holds(job_desc, part_list, now) then return false end

    local begin = 3 * place
    local token, set, message = answers[begin + 1], sets[answers[begin + 2]] or nothing, says[answers[begin + 3]]
    local partition = set.partition
    if token == "" or partition and part_list[partition] == nil then return false end
    local already, comment = read(of, "admin_comment"), "advisor=" .. token
    if already and already ~= "" then comment = already .. " " .. comment end
    if not send(notes_to, begins .. at_place[place]) then return false end
    place = place + 1
    local done, why = call(put_all, job_desc, set, comment, environment, token, setter)
    if not done then
      take_back(job_desc, as, set, comment, already)
      complain(why)
    elseif message then
      call(tell, message)
    end
    return true
  end

  -- From now on, as long as what comes is of this kind and answers of the piece that was used just now are left.
  function enter_short_way(kind, now)
    row, known = kind.row, kind.values
    piece, script = row[1], known.script
    if not tell or not script or not piece or piece.line or row.era ~= era then return end
    if script == true then script = nil end -- srun and salloc have none
    names, answers, sets, says, notes_to = list_names, piece.answers, piece.sets, piece.says, notes
    send = notes.send
    begins = USED .. piece.number
    place, count = piece.used, piece.last - piece.after + 1
    first = place
    piece.concerned = piece.concerned or concerned_by(known[PLACE.partition], sets)
    limits, concerned = partition_cache, piece.concerned
    checked_until = (partitions_read < defaults.read and partitions_read or defaults.read) + KEEP_PARTITIONS
    -- Then everything is read again, and answers that are old are looked for anew.
    since, good_until = now, piece.until_ - RENEWED
    if names_read + KEEP_NAMES < good_until then good_until = names_read + KEEP_NAMES end
  end

  -- Before anything else is done: what was taken on the short way is known on the other.
  function leave_short_way()
    if place > first then
      turns = turns + place - first
      took(row, piece, place)
    end
    place, count, first = 0, 0, 0
  end
end

make_short_way()

local function go_ordinary_way(job_desc, part_list, submit_uid, now)
  leave_short_way()
  if opened and fresh(opened, settings.breaker_seconds, now) then return end
  local deadline = now + settings.timeout_ms / 1000
  -- As long as answers are there, what else has come is not looked at. That they were taken back, or that the daemon is
  -- gone, shows where it cannot be told that one is used.
  local looks = latest_after < turns
  if looks then look() end
  local knocked, kept = 0, connection ~= nil
  if latest_after < turns then -- nothing is prepared
    local not_there
    kept, not_there = knock(deadline)
    if kept == nil then return failed(not_there) end
    knocked = #KNOCK
  end
  local environment = read_request(job_desc, part_list, submit_uid, now)
  local kind, why = kind_of_request()
  if not kind then
    disconnect() -- the daemon may have the beginning of a request
    return complain(why)
  end

  local set, token, message
  if knocked == 0 then
    set, token, message = use_prepared(kind, part_list, now, deadline, not looks)
    if not set and not looks then
      look()
      set, token, message = use_prepared(kind, part_list, now, deadline)
    end
    if set then enter_short_way(kind, now) end
  end
  if not set then
    local reply
    reply, why = exchange(kind.line, knocked, kept, deadline)
    if reply then
      set, token, message = judge(reply, part_list)
      if not set then why = token end
    end
    if not set then
      disconnect() -- the answer may still come: nobody may read it
      return failed(why)
    end
    answered()
  end
  local applied
  applied, why = apply(job_desc, kind.values or values, set, token, environment)
  if not applied then return complain(why) end
  if message then tell_user(message) end
end

local function consult(job_desc, part_list, submit_uid)
  local _, words, code = remove_file(in_disable_file)
  if words ~= known_words then known_words = words end
  if (disabled or code ~= NO_SUCH_FILE) and switched_off() or not json then return end
  local now = gettime()
  part_list = part_list or NOTHING
  if not go_short_way(job_desc, part_list, now) then go_ordinary_way(job_desc, part_list, submit_uid, now) end
end

-- Called by the site's slurm_job_submit, after its own rules. Always slurm.SUCCESS.
function advisor.submit(job_desc, part_list, submit_uid)
  local done, why = pcall(consult, job_desc, part_list, submit_uid)
  if not done then
    pcall(leave_short_way)
    pcall(disconnect) -- an answer may be under way
    pcall(complain, why)
  end
  return SUCCESS
end

-- Optional, once, after loading: advisor.configure{ timeout_ms = 50 }. A value that cannot be is logged
-- and left as it was; it does not raise, because an error while loading stops slurmctld.
function advisor.configure(changes)
  if type(changes) ~= "table" then
    return log("log_error", "configure takes a table of settings")
  end
  for name, value in pairs(changes) do
    local known = settings[name]
    if known == nil or type(value) ~= type(known) or (type(value) == "number" and value <= 0) then
      log("log_error", "configure: no such setting or not a possible value: " .. tostring(name))
    else
      settings[name] = value
    end
  end
  in_disable_file = settings.disable_file .. "/."
  leave_short_way()
  disconnect()
end

return advisor
