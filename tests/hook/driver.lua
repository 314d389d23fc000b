--[[ Runs the real advisor.lua the way slurmctld does: one JSON line in for each submission, one out.

The tables have the same metatables as those of job_submit_lua.c: `job_desc` is empty and answers through
__index and __newindex, strings set to "" become "not given", unknown fields read as nil and cannot be
set, the environment can only be asked by name. The functions behind these tables are globals, as they are there.
Usage: lua driver.lua FOLDER_OF_ADVISOR [HIDDEN...], where HIDDEN is a module or one of these globals.
]]

local json = require("cjson").new()
json.encode_sparse_array(true)
package.loaded.cjson = nil

for i = 2, #arg do -- as if it were not installed
  local hidden = arg[i]
  package.loaded[hidden] = nil
  package.preload[hidden] = function() error("module '" .. hidden .. "' not found:\n\tno file") end
end
package.path = arg[1] .. "/?.lua;" .. package.path

local unpack = table.unpack or unpack
local logged, told = {}, {}

slurm = { SUCCESS = 0, ERROR = -1 }
local slurm = slurm
for _, level in ipairs { "error", "info", "verbose", "debug", "debug2" } do
  slurm["log_" .. level] = function(...) logged[#logged + 1] = level .. ": " .. string.format(unpack({ ... })) end
end
slurm.user_msg = function(text) told[#told + 1] = text end
slurm.log_user = function(...) slurm.user_msg(string.format(unpack({ ... }))) end

local function checkstring(value, field) -- luaL_checkstring
  if type(value) == "number" then return tostring(value) end
  if type(value) ~= "string" then error("bad argument #3 to '" .. field .. "' (string expected)") end
  return value
end

local STRINGS = {}
for name in ([[account admin_comment array_inx clusters comment cpus_per_tres dependency exc_nodes extra features
  licenses mem_per_tres name partition prefer qos req_nodes reservation script tres_per_job tres_per_node
  tres_per_socket tres_per_task]]):gmatch("%S+") do STRINGS[name] = true end

-- slurm_init_job_desc_msg: what a field holds that the user did not give.
local UNSET = {
  time_limit = 0xfffffffe, time_min = 0xfffffffe, min_cpus = 0xfffffffe, num_tasks = 0xfffffffe,
  min_nodes = 0xfffffffe, max_nodes = 0xfffffffe, het_job_offset = 0xfffffffe, cpus_per_task = 0xfffe,
  ntasks_per_node = 0xfffe, ntasks_per_tres = 0xfffe, shared = 0xfffe, begin_time = 0,
  pn_min_memory = 2 ^ 64, bitflags = 0,
}

local function environment_of(job, environment)
  return setmetatable({}, {
    __index = function(_, name)
      if environment == nil then
        logged[#logged + 1] = "info: job_desc->environment only accessible for batch jobs."
        return nil
      end
      return environment[name]
    end,
    __newindex = function(_, name, value)
      if environment == nil then return end
      if job.refuses == "environment" then error("refused: environment") end
      environment[name] = checkstring(value, name)
    end,
  })
end

-- The globals take what the metatable keeps of a job, a pointer: any userdata will do, for one job at a time.
local POINTER, current = io.stdout, nil

function _get_job_req_field_name(pointer, name)
  assert(pointer == POINTER and type(name) == "string")
  return current.read(name)
end

function _get_job_env_field_name(pointer, name)
  assert(pointer == POINTER)
  return environment_of(current.job, current.job.environment)[name]
end

function _set_job_env_field(job_desc, name, value)
  assert(getmetatable(job_desc)._job_desc == POINTER)
  environment_of(current.job, current.job.environment)[name] = value
end

for i = 2, #arg do rawset(_G, arg[i], nil) end

local function job_desc_of(job)
  local fields = job.fields
  local meta = { _job_desc = not job.wrapped and POINTER or nil }
  local function read(name)
    if job.unreadable == name then error("unreadable: " .. name) end
    if name == "environment" then return environment_of(job, job.environment) end
    if fields[name] ~= nil then return fields[name] end
    return UNSET[name]
  end
  current = { job = job, read = read }
  function meta.__index(_, name)
    if job.unreadable_tables then error("unreadable: its tables") end
    return read(name)
  end
  function meta.__newindex(_, name, value)
    if job.refuses == name then error("refused: " .. name) end
    if not STRINGS[name] then
      logged[#logged + 1] = "error: _set_job_field: unrecognized field: " .. name
      return
    end
    local text = checkstring(value, name)
    fields[name] = text ~= "" and text or nil
  end
  return setmetatable({}, meta)
end

local function part_list_of(partitions)
  local list = {}
  for name, limits in pairs(partitions) do
    list[name] = setmetatable({}, { __index = function(_, field) return limits[field] end })
  end
  return list
end

local loaded, advisor = pcall(require, "advisor")

local function answer(command)
  if command.configure then
    advisor.configure(command.configure)
    return {}
  end
  if command.break_log then
    slurm.log_error = function() error("log is broken") end
    slurm.log_info, slurm.log_user, slurm.user_msg = slurm.log_error, slurm.log_error, slurm.log_error
    return {}
  end
  local returned, rc
  for _ = 1, command.times or 1 do
    returned, rc = pcall(advisor.submit, job_desc_of(command), part_list_of(command.partitions), command.uid)
    if not returned or rc ~= 0 then break end
  end
  return { raised = not returned, rc = rc, fields = command.fields, environment = command.environment }
end

io.stdout:setvbuf("line")
for line in io.lines() do
  local reply = loaded and answer(json.decode(line)) or { raised = true, rc = advisor }
  reply.logged, reply.told, reply.version = logged, told, loaded and advisor.VERSION
  print(json.encode(reply))
  for i = #logged, 1, -1 do logged[i] = nil end
  for i = #told, 1, -1 do told[i] = nil end
end
