--[[ slurm-advisor: the hook in slurmctld's submit path.

A module for the site's own job_submit.lua. It asks the daemon over a unix socket where the job would
finish first and sets what the daemon answers, all of it or nothing. Whatever goes wrong (no daemon, a
slow one, garbage, missing Lua modules), the job passes unchanged: `advisor.submit` never raises and
never returns anything but slurm.SUCCESS. Runs on Lua 5.1 (what Debian's Slurm links) to 5.4.

slurmctld calls it under its locks, so every wait is bounded: `timeout_ms` for the whole exchange, and
after `breaker_failures` failures in a row nobody is asked for `breaker_seconds`.
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

-- slurm.h: "not given" and "no limit" of 16, 32 and 64 bit fields. 64 bit values come as doubles.
local NO_VAL16, NO_VAL, INFINITE = 0xfffe, 0xfffffffe, 0xffffffff
local BEYOND_DOUBLE = 2 ^ 53

-- What the daemon may set.
local SETTABLE = { "partition", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }
local IS_SETTABLE = {}
for _, field in ipairs(SETTABLE) do IS_SETTABLE[field] = true end

-- Cut short, these would mean something else, or come back shortened: a job with one that is too long is
-- not asked about at all.
local WHOLE_TEXTS = { "features" }
for _, field in ipairs(SETTABLE) do WHOLE_TEXTS[#WHOLE_TEXTS + 1] = field end

local TEXTS = {
  "name", "prefer", "licenses", "reservation", "req_nodes", "exc_nodes",
  "clusters", "cpus_per_tres", "mem_per_tres", "dependency",
}
-- Where the job names none, slurmctld tells the user's default one.
local DEFAULTED = { "account", "qos" }
local NUMBERS32 = { "time_min", "min_cpus", "num_tasks", "min_nodes", "max_nodes" }
local NUMBERS16 = { "cpus_per_task", "ntasks_per_node", "ntasks_per_tres", "shared" }
-- slurmctld answers nil unless the user asked for it: --mem and --mem-per-cpu share one field.
local MEMORY = { "min_mem_per_node", "min_mem_per_cpu" }
-- slurmctld gives the environment by name only; these are the names that mean something to us.
local ENVIRONMENT = { "ADVISOR", "ADVISOR_APP", "ADVISOR_DFG" }
local PARTITION_TEXTS = { "allow_accounts", "deny_accounts", "allow_qos", "deny_qos" }
local PARTITION_NUMBERS = {
  "max_time", "default_time", "min_nodes", "max_nodes", "max_cpus_per_node", "priority_tier",
}
-- Zero means no limit here.
local PARTITION_MEMORY = { "max_mem_per_node", "max_mem_per_cpu" }
local PARTITION_UP = 3 -- may submit (1) and may start (2)

local byte, find, format, gmatch, gsub, sub =
  string.byte, string.find, string.format, string.gmatch, string.gsub, string.sub
local concat = table.concat

-- Every request begins with this. It is sent before the rest is known, so that the daemon wakes up meanwhile.
local KNOCK = format('{"v":%d,"op":"submit"', advisor.PROTOCOL)

-- A field's name as it stands in a request: `,"partition":`.
local KEY = setmetatable({}, { __index = function(keys, field)
  local key = format(',"%s":', field)
  rawset(keys, field, key)
  return key
end })

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

local function encode_partition(name, record)
  local limits = { name = as_utf8(name) } -- what the protocol takes for granted is not sent
  if record.flag_default == 1 then limits.default = true end
  if (tonumber(record.state_up) or 0) % 4 ~= PARTITION_UP then limits.up = false end
  for _, field in ipairs(PARTITION_TEXTS) do limits[field] = text_of(record[field], MAX_TEXT) end
  for _, field in ipairs(PARTITION_NUMBERS) do limits[field] = number_of(record[field], NO_VAL) end
  for _, field in ipairs(PARTITION_MEMORY) do
    local limit = number_of(record[field], BEYOND_DOUBLE)
    limits[field] = limit ~= 0 and limit or nil
  end
  return json.encode(limits)
end

-- Reading a partition's limits costs more than the rest of a request, and a burst of submissions reads
-- the same ones again. So they are kept for a second; which partitions the user may use never is.
local KEEP_PARTITIONS, KEEP_NAMES = 1, 300
local partition_cache, partitions_read = {}, 0
local name_cache, names_read = {}, 0

local function fresh(read, keep, now) return now >= read and now - read < keep end

-- The text of the list as a whole, and the names in it, in the order in which `pairs` gives them.
local list_names, list_text = {}, nil

local function same_list(part_list)
  local n = 0
  for name in pairs(part_list) do
    n = n + 1
    if list_names[n] ~= name then return false end
  end
  return list_names[n + 1] == nil
end

local function encode_partitions(part_list, now)
  if not fresh(partitions_read, KEEP_PARTITIONS, now) then
    partition_cache, partitions_read, list_text = {}, now, nil
  end
  if list_text and same_list(part_list) then return list_text end
  local encoded, names, n = {}, {}, 0
  for name, record in pairs(part_list) do
    local text = partition_cache[name]
    if not text then
      text = encode_partition(name, record)
      partition_cache[name] = text
    end
    n = n + 1
    encoded[n], names[n] = text, name
  end
  list_names, list_text = names, ',"partitions":[' .. concat(encoded, ",") .. "]}\n"
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

-- A request is put together here, piece by piece. The table is kept: what a submission leaves behind, slurmctld's
-- Lua has to collect, and with it walks over the records of all jobs.
local pieces, count = {}, 0

-- Texts as JSON. Users submit alike jobs, so the same few come again; forgotten when there are many.
local KEEP_BYTES = 256 * KIB
local quoted, quoted_bytes = {}, 0

local function put_text(field, value, longest)
  if type(value) ~= "string" or value == "" then return end
  local text = #value <= longest and quoted[value]
  if not text then
    text = json.encode(text_of(value, longest))
    if #value <= longest then
      quoted_bytes = quoted_bytes + #value + #text
      if quoted_bytes > KEEP_BYTES then quoted, quoted_bytes = {}, #value + #text end
      quoted[value] = text
    end
  end
  pieces[count + 1], pieces[count + 2] = KEY[field], text
  count = count + 2
end

local function put_number(field, value, unset)
  if type(value) ~= "number" or not (value >= 0 and value < unset) then return end
  pieces[count + 1], pieces[count + 2] = KEY[field], format("%.14g", value)
  count = count + 2
end

local function put_all(put, fields, job_desc, limit)
  for i = 1, #fields do
    local field = fields[i]
    put(field, job_desc[field], limit)
  end
end

-- The request from after the knock up to its newline, and the environment of a batch job (false for srun and
-- salloc); or nil and why this job is not asked about.
local function encode_request(job_desc, part_list, submit_uid, now)
  -- The job's owner: root may submit for another user, and part_list is the owner's.
  local uid = number_of(job_desc.user_id, NO_VAL) or number_of(submit_uid, NO_VAL)
  local script = job_desc.script
  local batch = type(script) == "string"
  count = 1
  pieces[1] = batch and ',"batch":true' or ',"batch":false'
  if uid then
    put_number("uid", uid, NO_VAL)
    put_text("user", user_name(job_desc, uid, now), MAX_TEXT)
  end

  for i = 1, #WHOLE_TEXTS do
    local field = WHOLE_TEXTS[i]
    local value = job_desc[field]
    if type(value) == "string" and #value > MAX_TEXT then return nil, field .. " is too long" end
    put_text(field, value, MAX_TEXT)
  end
  put_all(put_text, TEXTS, job_desc, MAX_TEXT)
  put_all(put_number, NUMBERS32, job_desc, NO_VAL)
  put_all(put_number, NUMBERS16, job_desc, NO_VAL16)
  put_all(put_number, MEMORY, job_desc, BEYOND_DOUBLE)
  for i = 1, #DEFAULTED do
    local field = DEFAULTED[i]
    local value = job_desc[field]
    if type(value) ~= "string" or value == "" then
      field = "default_" .. field
      value = job_desc[field]
    end
    put_text(field, value, MAX_TEXT)
  end
  put_text("array", job_desc.array_inx, MAX_TEXT)
  put_number("het_offset", job_desc.het_job_offset, NO_VAL)
  -- Asking for no limit is not the same as leaving the limit to the partition: it exceeds every limit.
  local minutes = job_desc.time_limit
  put_number("time_limit", minutes, minutes == INFINITE and BEYOND_DOUBLE or NO_VAL)
  local begin = job_desc.begin_time
  if begin ~= 0 then put_number("begin_time", begin, BEYOND_DOUBLE) end
  put_text("comment", job_desc.comment, MAX_LONG_TEXT)
  put_text("extra", job_desc.extra, MAX_LONG_TEXT)

  local environment = false
  if batch then -- slurmctld has no environment for srun and salloc, and logs a line if asked
    put_text("script_head", comment_block(script), MAX_LONG_TEXT)
    environment = job_desc.environment
    local ours
    for i = 1, #ENVIRONMENT do
      local value = text_of(environment[ENVIRONMENT[i]], MAX_LONG_TEXT)
      if value then
        ours = ours or {}
        ours[ENVIRONMENT[i]] = value
      end
    end
    if ours then
      pieces[count + 1], pieces[count + 2] = KEY.environment, json.encode(ours)
      count = count + 2
    end
  end

  -- Spliced in rather than encoded with the rest: cjson cannot tell an empty list from an object.
  count = count + 1
  pieces[count] = encode_partitions(part_list, now)
  local rest = concat(pieces, "", 1, count)
  if #rest + #KNOCK > MAX_REQUEST then return nil, "the request would be " .. #rest + #KNOCK .. " bytes" end
  return rest, environment
end

-- Exchange -----------------------------------------------------------------------------------------

local connection -- kept between submissions, as long as slurmctld keeps this Lua state

local function disconnect()
  if connection then pcall(connection.close, connection) end
  connection = nil
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

-- A kept connection is good if it is open and silent. What the daemon sent unasked, or too late, must
-- not be taken for the next answer.
local function silent(conn)
  conn:settimeout(0, "t")
  local data, why = conn:receive(1)
  return not data and why == "timeout"
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
    local newline = find(piece, "\n", 1, true)
    if newline then
      if newline < #piece then return nil, "more than one line in reply" end
      return sub(concat(received), 1, -2)
    end
    if size >= MAX_REPLY then return nil, "reply of more than " .. MAX_REPLY .. " bytes" end
  end
end

local function converse(conn, line, deadline)
  local in_time, why = limit(conn, deadline)
  if not in_time then return nil, why end
  local sent
  sent, why = conn:send(line)
  if not sent then return nil, why, true end
  return receive_line(conn, deadline)
end

-- Begins a request on the kept connection, or on a new one: whether it was a kept one, or nil and why not.
local function knock(deadline)
  if connection and not silent(connection) then disconnect() end
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

-- The reply to a request that was begun with `knock`, or nil and why. A kept connection that turns out to be
-- closed means that the daemon was restarted: asked again on a new one, within the same deadline.
local function exchange(rest, kept, deadline)
  local reply, why, nothing_came = converse(connection, rest, deadline)
  if reply or not (kept and why == "closed" and nothing_came) then return reply, why end
  disconnect()
  connection, why = connect(deadline)
  if not connection then return nil, why end
  reply, why = converse(connection, KNOCK .. rest, deadline)
  return reply, why
end

-- Reply --------------------------------------------------------------------------------------------

local function usable_partitions(value, part_list)
  if find("," .. value .. ",", ",,", 1, true) then return false end
  for name in gmatch(value, "[^,]+") do
    if part_list[name] == nil then return false end
  end
  return true
end

local function word(value, longest)
  return type(value) == "string" and #value <= longest and find(value, "^[!-~]+$") ~= nil
end

local function given(reply, field)
  local value = reply[field]
  if value ~= json.null then return value end
end

local NOTHING = {} -- never written to

-- The fields to set, the token and the message, checked to the last value; or nil and what is wrong.
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
  if token ~= nil and not (word(token, 128) and find(token, "^[%w._-]+$")) then
    return nil, "token is not a word"
  end
  if message ~= nil and type(message) ~= "string" then return nil, "message is not text" end
  for field, value in pairs(set) do
    if not IS_SETTABLE[field] then return nil, "may not set " .. sub(tostring(field), 1, 40) end
    if field == "partition" then
      if type(value) ~= "string" or not usable_partitions(value, part_list) then
        return nil, "partition is not one that this user may use"
      end
    elseif not word(value, MAX_TEXT) then
      return nil, "bad value for " .. field
    end
  end
  return set, token, message
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
local function apply(job_desc, set, token, environment)
  local before, comment = {}, nil
  for field in pairs(set) do before[field] = job_desc[field] or "" end -- "": slurmctld's "not given"
  if token then
    -- A space apart from what the site's own rules wrote there.
    local already = job_desc.admin_comment
    before.admin_comment = already or ""
    local kept = type(already) == "string" and already ~= "" and already .. " " or ""
    comment = kept .. "advisor=" .. token
  end
  local done, why = pcall(put_everything, job_desc, set, comment, environment, token)
  if done then return true end
  for field, value in pairs(before) do pcall(put, job_desc, field, value) end
  return false, why
end

local function tell_user(message)
  local text = gsub(sub(message, 1, MAX_MESSAGE), "%c+", " ")
  text = as_utf8(text)
  if find(text, "%S") then pcall(slurm_table().log_user, "%s", text) end
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
  if not json or (disabled and switched_off()) then return end
  local now = gettime()
  if opened and fresh(opened, settings.breaker_seconds, now) then return end
  if type(part_list) ~= "table" then part_list = {} end
  local deadline = now + settings.timeout_ms / 1000
  local kept, why = knock(deadline)
  -- Looked for while the daemon wakes up; a request that is not finished asks nothing.
  if switched_off() then return disconnect() end
  if kept == nil then return failed(why) end
  local rest, environment = encode_request(job_desc, part_list, submit_uid, now)
  if not rest then
    disconnect() -- the daemon has the beginning of a request
    return complain(environment)
  end

  local reply, set, token, message
  reply, why = exchange(rest, kept, deadline)
  if reply then
    set, token, message = judge(reply, part_list)
    if not set then why = token end
  end
  if not set then
    disconnect() -- the answer may still come: nobody may read it
    return failed(why)
  end
  answered()
  local applied
  applied, why = apply(job_desc, set, token, environment)
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
