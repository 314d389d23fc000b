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
local MAX_ROW = 16 -- so many prepared answers to one kind are kept, each to be used after the one before
local MAX_KIND = 64 * KIB -- longer requests are not kept
local SOCKET_BUFFER = 8 * KIB -- lua-socket's own
local MAX_AHEAD = 5 -- seconds: no prepared answer is good for longer, whatever it says of itself
local LOOK_AGAIN = 0.05 -- seconds: as long as answers are there, what else has come is looked at that often
local RENEWED = 1.2 -- seconds: those that are good for less may have been worked out anew, and are looked for

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
local concat = table.concat

-- Every request begins with this. Where nothing is prepared it is sent before the rest is known, so that the daemon
-- wakes up meanwhile.
local KNOCK = format('{"v":%d,"op":"submit"', advisor.PROTOCOL)
-- So begins what the daemon sends unasked: an answer prepared for requests of a kind; kind 0: none holds any more.
local PREPARED = format('^{"v":%d,"prepared":(%%d+)[,}]', advisor.PROTOCOL)
-- The daemon does not wait for what comes on a connection that begins with this, but looks there now and then: waking
-- it up would cost more than all the rest.
local NOTES = format('{"v":%d,"op":"notes"}\n', advisor.PROTOCOL)
local USED = format('{"v":%d,"op":"used","number":', advisor.PROTOCOL)

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
local SIMPLE = #FIELDS -- up to here a field is just read; `read_request` knows about the others
tells(NUMBER, BEYOND_DOUBLE, "min_mem_per_node", "min_mem_per_cpu")
tells(TEXT, MAX_TEXT, "account", "default_account", "qos", "default_qos")
tells(NUMBER, NO_VAL, "uid")
tells(TEXT, MAX_TEXT, "user")
tells(TEXT, MAX_LONG_TEXT, "script_head")
local TOLD = #FIELDS
-- slurmctld gives the environment by name only; these are the names that mean something to us.
local ENVIRONMENT = { "ADVISOR", "ADVISOR_APP", "ADVISOR_DFG" }
-- After the fields, a submission's values hold these, whether it is a batch job, and its list of partitions.
local BATCH = TOLD + #ENVIRONMENT + 1
local PARTITIONS = BATCH + 1

-- Log ----------------------------------------------------------------------------------------------

local function slurm_table()
  local slurm = rawget(_G, "slurm")
  return type(slurm) == "table" and slurm or {}
end

-- `level` names a function of slurmctld's table. A log that fails must not hurt the job.
local function log(level, text)
  pcall(function() slurm_table()[level]("%s", "advisor: " .. text) end)
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

-- The text of the list as a whole, and the names in it and what was read, in the order in which `pairs` gives them.
local list_names, list_read, list_text = {}, {}, nil

local function same_list(part_list, names)
  local n = 0
  for name in pairs(part_list) do
    n = n + 1
    if names[n] ~= name then return false end
  end
  return names[n + 1] == nil
end

local function encode_partitions(part_list, now)
  if not fresh(partitions_read, KEEP_PARTITIONS, now) then
    partition_cache, partitions_read, list_text = {}, now, nil
  end
  if list_text and same_list(part_list, list_names) then return list_text end
  local encoded, names, read, n = {}, {}, {}, 0
  for name, record in pairs(part_list) do
    local kept = partition_cache[name]
    if not kept then
      kept = { read = read_partition(record) }
      kept.text = encode_partition(name, kept.read)
      partition_cache[name] = kept
    end
    n = n + 1
    encoded[n], names[n], read[n] = kept.text, name, kept.read
  end
  list_names, list_read, list_text = names, read, ',"partitions":[' .. concat(encoded, ",") .. "]}\n"
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

local last_script, last_head -- users submit alike jobs

local function head_of(script)
  if script == last_script then return last_head end
  local head = comment_block(script) or false
  if #script <= MAX_KIND then last_script, last_head = script, head end
  return head
end

-- Reads what a request tells; its first `same` fields are known to be as in `known`. The environment of a batch job,
-- false for srun and salloc.
local function read_request(job_desc, part_list, submit_uid, now, same, known)
  for n = 1, same do values[n] = known[n] end
  for n = same + 1, SIMPLE do values[n] = job_desc[FIELDS[n]] or false end
  local n = SIMPLE
  -- slurmctld answers nil unless the user asked for it: --mem and --mem-per-cpu share one field.
  local memory = job_desc.min_mem_per_node
  values[n + 1], values[n + 2] = memory or false, memory == nil and job_desc.min_mem_per_cpu or false
  local account, qos = job_desc.account or false, job_desc.qos or false
  if account == "" then account = false end
  if qos == "" then qos = false end
  -- The job's owner: root may submit for another user, and part_list is the owner's.
  local uid = number_of(job_desc.user_id, NO_VAL) or number_of(submit_uid, NO_VAL)
  values[n + 3], values[n + 5] = account, qos
  values[n + 4], values[n + 6] = read_defaults(job_desc, uid, account, qos, values[PLACE.partition], now)
  values[n + 7], values[n + 8] = uid or false, uid and user_name(job_desc, uid, now) or false
  local script, environment = job_desc.script, false
  local batch = type(script) == "string"
  values[n + 9] = batch and head_of(script)
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
local latest -- the kind of the last submission
local NO_KIND = {}

local function is_of(kind)
  local known = kind.values
  for n = 1, PARTITIONS do
    if known[n] ~= values[n] then return false end
  end
  return true
end

-- From `read_at` until `good_until`, nothing that is kept for all requests has to be read again for this kind either.
local function note_reading(kind, now)
  latest = kind
  kind.names, kind.read, kind.read_at = list_names, list_read, now
  kind.good_until = (partitions_read < defaults.read and partitions_read or defaults.read) + KEEP_PARTITIONS
  kind.names_until = names_read + KEEP_NAMES
end

-- Whether all that is kept for requests of this kind is still so, for a job that is of it in everything else. Mostly,
-- and then nothing has to be put together anew.
local function reads_as_kept(kind, job_desc, part_list, now)
  local known, n = kind.values, 0
  for _, record in pairs(part_list) do -- in the order in which they were read: the list is the same
    n = n + 1
    if not reads_as(record, kind.read[n]) then return false end
  end
  n = SIMPLE
  local account, qos = known[n + 3], known[n + 5]
  if (not account and job_desc.default_account or false) ~= known[n + 4] then return false end
  if (not qos and job_desc.default_qos or false) ~= known[n + 6] then return false end
  kind.read_at, kind.good_until = now, now + KEEP_PARTITIONS
  return true
end

-- Whether a submission reads as the last one did. The shortest way to know the kind where users submit alike jobs:
-- nothing is stored, and the first difference ends it. As `read_request`; or nil and how many fields were the same.
local function read_as_latest(job_desc, part_list, submit_uid, now)
  local kind = latest
  if not kind or now < kind.read_at or now >= kind.names_until then return nil, 0 end
  local known, n = kind.values, SIMPLE
  if (number_of(job_desc.user_id, NO_VAL) or number_of(submit_uid, NO_VAL) or false) ~= known[n + 7] then
    return nil, 0
  end
  for i = 1, SIMPLE do
    if (job_desc[FIELDS[i]] or false) ~= known[i] then return nil, i - 1 end
  end
  local memory = job_desc.min_mem_per_node
  if (memory or false) ~= known[n + 1]
    or (memory == nil and job_desc.min_mem_per_cpu or false) ~= known[n + 2] then return nil, n end
  local account, qos = job_desc.account or false, job_desc.qos or false
  if account == "" then account = false end
  if qos == "" then qos = false end
  if account ~= known[n + 3] or qos ~= known[n + 5] then return nil, n end
  local script, environment = job_desc.script, false
  local batch = type(script) == "string"
  if batch ~= known[BATCH] or (batch and head_of(script)) ~= known[n + 9] then return nil, n end
  if batch then
    environment = job_desc.environment
    for i = 1, #ENVIRONMENT do
      if (environment[ENVIRONMENT[i]] or false) ~= known[TOLD + i] then return nil, n end
    end
  end
  if not same_list(part_list, kind.names) then return nil, n end
  if now >= kind.good_until and not reads_as_kept(kind, job_desc, part_list, now) then return nil, n end
  turn = turn + 1
  kind.turn = turn
  return environment
end

-- The kind of the submission that was read: its `line` is the request; or nil and why nobody is asked.
local function kind_of_request(now)
  turn, latest = turn + 1, nil
  local oldest
  for i = 1, #kinds do
    local kind = kinds[i]
    if is_of(kind) then
      kind.turn = turn
      note_reading(kind, now)
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
    row = {}, -- answers that were prepared for it, by `after` modulo MAX_ROW
  }
  values = {}
  kinds[#kinds < MAX_KINDS and #kinds + 1 or oldest] = kind
  note_reading(kind, now)
  return kind
end

-- Exchange -----------------------------------------------------------------------------------------

local connection -- kept between submissions, as long as slurmctld keeps this Lua state
local notes -- another one, once there is something to tell that needs no answer
local turns = 0 -- requests and notes since connected
-- What was prepared holds as long as this stays; `latest_after`: and as long as no more turns were taken.
local era, latest_after = 0, -1
local last_used -- the number of the prepared answer that the last submission took
local looked = 0 -- when what has come was looked at

local function forget_prepared() era, latest_after = era + 1, -1 end

local function disconnect()
  if connection then pcall(connection.close, connection) end
  if notes then pcall(notes.close, notes) end
  connection, notes, turns, last_used = nil, nil, 0, nil
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

-- Prepared answers to the same kind mostly read alike, but for this head. `follows`: the number of the answer that the
-- last submission must have taken, 0: whatever it was; a daemon that prepares one at a time does not tell it.
local HEAD_BEGINS =
  format('^{"v":%d,"prepared":(%%d+),"number":(%%d+),"after":(%%d+),"until":([%%d.]+),', advisor.PROTOCOL)
local FOLLOWING = HEAD_BEGINS .. '"follows":(%d+),"token":"([%w._-]+)"(.+)$'
local SINGLE = HEAD_BEGINS .. '"token":"([%w._-]+)"(.+)$'

local function kind_by(id)
  if latest and latest.id == id then return latest end -- mostly
  for i = 1, #kinds do
    if kinds[i].id == id then return kinds[i] end
  end
end

-- Whether a line is an answer that was prepared, which is then put aside.
local function put_aside(line)
  local id, number, after, until_, follows, token, body = match(line, FOLLOWING)
  if not id then
    id, number, after, until_, token, body = match(line, SINGLE)
    follows = "0"
    if not id then
      id = match(line, PREPARED)
      if id == "0" then forget_prepared() end
      after = turns
    end
  end
  if body and #token > 128 then body = nil end
  local kind = id and kind_by(id)
  if not kind then return id ~= nil end -- nobody will ask for it any more
  local row = kind.row
  if row.era ~= era or follows == "0" or not body then row.era, row.start, row.odd = era, (row.start or 0) + 1, nil end
  after = tonumber(after)
  if after > latest_after then latest_after = after end
  if not body then -- spelled in another way
    row.odd = line
    return true
  end
  local place = after % MAX_ROW + 1
  local answer = row[place]
  if not answer then
    answer = {}
    row[place] = answer
  end
  answer.start, answer.number, answer.after, answer.until_ = row.start, number, after, tonumber(until_)
  answer.follows, answer.token, answer.body = follows, token, body
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
local function look(now)
  looked = now
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

-- Tells that an answer is used, by its number as the daemon spelled it; whether it could be told.
local function note(number, deadline)
  local line = USED .. number .. "}\n"
  if not notes then
    notes = connect(deadline)
    -- Whoever listens now may not be the one who prepared the answer.
    if not notes or not in_order(connection) then return false end
    notes:settimeout(0, "t")
    line = NOTES .. line
  end
  turns = turns + 1
  return notes:send(line) ~= nil
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
  if #message > MAX_MESSAGE or find(message, "[%c\128-\255]") then
    message = as_utf8((gsub(sub(message, 1, MAX_MESSAGE), "%c+", " ")))
  end
  return find(message, "%S") and message or nil
end

-- The fields to set, the token, the message and the whole reply, checked to the last value; or nil and what is wrong.
local function judge(text, part_list)
  local decoded, reply = pcall(json.decode, text)
  if not decoded then return nil, "reply is not JSON" end
  if type(reply) ~= "table" then return nil, "reply is not an object" end
  if given(reply, "v") ~= advisor.PROTOCOL then
    return nil, "reply has protocol version " .. sub(tostring(given(reply, "v")), 1, 20) .. ", not "
      .. advisor.PROTOCOL .. ": install the hook and the daemon of one release"
  end
  -- The daemon is well and refuses this one request; that must not open the breaker for others.
  if given(reply, "error") ~= nil then return NOTHING, nil, nil, reply end

  local action, token, message = given(reply, "action") or "keep", given(reply, "token"), given(reply, "message")
  local set = given(reply, "set")
  if set == nil then set = NOTHING end
  if action ~= "keep" and action ~= "rewrite" then return nil, "unknown action" end
  if type(set) ~= "table" then return nil, "set is not an object" end
  if (next(set) ~= nil) ~= (action == "rewrite") then return nil, "action does not fit the fields to set" end
  if token ~= nil and not (type(token) == "string" and #token <= 128 and find(token, "^[%w._-]+$")) then
    return nil, "token is not a word"
  end
  if message ~= nil then
    if type(message) ~= "string" then return nil, "message is not text" end
    message = one_line(message)
  end
  for field, value in pairs(set) do
    if not IS_SETTABLE[field] then return nil, "may not set " .. sub(tostring(field), 1, 40) end
    if field == "partition" then
      if type(value) ~= "string" or not usable_partitions(value, part_list) then
        return nil, "partition is not one that this user may use"
      end
    elseif not word(value) then
      return nil, "bad value for " .. field
    end
  end
  return set, token, message, reply
end

-- What follows the head of a prepared answer is mostly known already.
local HEADLESS = format('{"v":%d', advisor.PROTOCOL)
local IN_HEAD = { "token", "number", "after", "until", "follows", "prepared" }
local MAX_BODIES = 16 * MAX_KINDS
local bodies, body_count = {}, 0 -- what follows a head → what `judge` found in it

-- The message comes last and tells other times now and then: split off, so that the rest need not be decoded again.
local MESSAGE = ',"message":"'

local function keep_body(text, set, message)
  if body_count >= MAX_BODIES then bodies, body_count = {}, 0 end
  local partitions
  if set.partition then
    partitions = {}
    for name in gmatch(set.partition, "[^,]+") do partitions[#partitions + 1] = name end
  end
  bodies[text], body_count = { set = set, message = message, partitions = partitions }, body_count + 1
  return set, message
end

-- The fields to set and the message of what follows a head; nil where it says something that it may not, false where
-- the daemon says that it has no answer.
local function judge_body(text, part_list)
  local known = bodies[text]
  if known then
    -- Everything else in it has been looked at; which partitions the user may use is not for it to say.
    local partitions = known.partitions
    for i = 1, partitions and #partitions or 0 do
      if part_list[partitions[i]] == nil then return nil end
    end
    return known.set, known.message
  end
  local begins, ends = find(text, MESSAGE, 1, true)
  if begins then
    local message = match(text, '^([^"\\]*)"}$', ends + 1) -- as it is spelled is what it says
    if message then
      local set = judge_body(sub(text, 1, begins - 1) .. "}", part_list)
      if not set then return set end
      return keep_body(text, set, one_line(message))
    end
  end
  local set, _, message, body = judge(HEADLESS .. text, part_list)
  if not set then return nil end
  if given(body, "error") ~= nil then return false end
  for _, name in ipairs(IN_HEAD) do
    if body[name] ~= nil then return nil end
  end
  return keep_body(text, set, message)
end

-- The answer to this kind that holds now; nil where there is none.
local function next_answer(row)
  local answer = row[turns % MAX_ROW + 1]
  -- Worked out before our last submission, it knows nothing of that one.
  if not answer or answer.start ~= row.start or answer.after ~= turns then return nil end
  if answer.follows ~= "0" and answer.follows ~= last_used then return nil end
  return answer
end

-- As `next_answer`, where it is spelled in another way; false where the daemon has none, or where it is nonsense: then
-- the second result tells that.
local function odd_answer(line, part_list)
  local set, token, message, answer = judge(line, part_list)
  if not set then return false, true end
  if given(answer, "error") ~= nil then return false end
  local number, follows = given(answer, "number"), given(answer, "follows") or 0
  if type(number) ~= "number" or given(answer, "after") ~= turns or follows ~= 0 then return false end
  number = format("%.0f", number)
  return { number = number, until_ = given(answer, "until"), set = set, token = token, message = message }
end

-- As `judge`, of the answer that was prepared for this kind; nil where there is none that holds. The daemon is told
-- that it is used, before it is: what nobody can be told of is not used.
local function use_prepared(kind, part_list, now, deadline, only_new)
  local row = kind.row
  if not row or row.era ~= era then return nil end
  local answer, set, message, nonsense
  if row.odd then
    answer, nonsense = odd_answer(row.odd, part_list)
    if answer then set, message = answer.set, answer.message end
  else
    answer = next_answer(row)
    if answer then
      set, message = judge_body(answer.body, part_list)
      nonsense = set == nil
    end
  end
  if nonsense then disconnect() end -- who prepares it is asked anew
  if not answer or not set then return nil end
  local until_ = answer.until_
  -- The clock may have been set back.
  if type(until_) ~= "number" or not (now < until_ and until_ - now <= MAX_AHEAD) then return nil end
  if only_new and until_ - now < RENEWED then return nil end
  if not note(answer.number, deadline) then
    disconnect()
    return nil
  end
  -- All but what follows it was worked out without this one.
  era, last_used = era + 1, answer.number
  row.era, answer.start, row.odd = era, nil, nil
  return set, answer.token, message
end

-- Job ----------------------------------------------------------------------------------------------

local function put(job_desc, field, value) job_desc[field] = value end

local function put_everything(job_desc, set, comment, environment, token)
  for field, value in pairs(set) do job_desc[field] = value end
  if comment then job_desc.admin_comment = comment end
  if token and environment then environment.ADVISOR_TOKEN = token end
end

-- Sets every field or none: true, or false and why. The environment comes last because a variable
-- that was not there cannot be taken away again.
local function apply(job_desc, told, set, token, environment)
  local already, comment
  if token then
    -- A space apart from what the site's own rules wrote there.
    already = job_desc.admin_comment
    local kept = type(already) == "string" and already ~= "" and already .. " " or ""
    comment = kept .. "advisor=" .. token
  end
  local done, why = pcall(put_everything, job_desc, set, comment, environment, token)
  if done then return true end
  for field in pairs(set) do pcall(put, job_desc, field, told[PLACE[field]] or "") end -- "": Slurm's "not given"
  if comment then pcall(put, job_desc, "admin_comment", already or "") end
  return false, why
end

local function tell_user(text) pcall(slurm_table().log_user, "%s", text) end

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

local function switched_off()
  local file = io.open(settings.disable_file)
  if file then file:close() end
  local off = file ~= nil
  if off ~= disabled then
    disabled = off
    log("log_info", (off and "off" or "on again") .. " (" .. settings.disable_file .. ")")
  end
  return off
end

local function consult(job_desc, part_list, submit_uid)
  if not json or switched_off() then return end
  local now = gettime()
  if opened and fresh(opened, settings.breaker_seconds, now) then return end
  if type(part_list) ~= "table" then part_list = {} end
  local deadline = now + settings.timeout_ms / 1000
  -- An answer that is there may have been taken back in the meantime, and the daemon books it all the same. That the
  -- daemon is gone shows where it cannot be told that the answer is used.
  local looks = latest_after < turns or not fresh(looked, LOOK_AGAIN, now)
  if looks then look(now) end
  local knocked, kept = 0, connection ~= nil
  if latest_after < turns then -- nothing is prepared
    local not_there
    kept, not_there = knock(deadline)
    if kept == nil then return failed(not_there) end
    knocked = #KNOCK
  end
  local kind, why
  local environment, same = read_as_latest(job_desc, part_list, submit_uid, now)
  if environment ~= nil then
    kind = latest
  else
    environment = read_request(job_desc, part_list, submit_uid, now, same, latest and latest.values)
    kind, why = kind_of_request(now)
    if not kind then
      disconnect() -- the daemon may have the beginning of a request
      return complain(why)
    end
  end

  local set, token, message
  if knocked == 0 then
    set, token, message = use_prepared(kind, part_list, now, deadline, not looks)
    if not set and not looks then
      look(now)
      set, token, message = use_prepared(kind, part_list, now, deadline)
    end
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

-- Called by the site's slurm_job_submit, after its own rules. Always slurm.SUCCESS.
function advisor.submit(job_desc, part_list, submit_uid)
  local done, why = pcall(consult, job_desc, part_list, submit_uid)
  if not done then
    pcall(disconnect) -- an answer may be under way
    pcall(complain, why)
  end
  return slurm_table().SUCCESS or 0
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
  disconnect()
end

return advisor
