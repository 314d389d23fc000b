--[[ A job_submit.lua that only asks slurm-advisor.

A site with a job_submit.lua of its own keeps it and adds the two lines marked below. They are safe:
if advisor.lua is missing or broken, slurmctld starts all the same and every job passes unchanged.
]]

-- slurm-advisor, line 1 of 2: at the top of the file. The folder is the one that holds advisor.lua.
package.path = "/etc/slurm/?.lua;" .. package.path; local _, advisor = pcall(require, "advisor")

if type(advisor) ~= "table" then
  slurm.log_error("%s", "slurm-advisor is not loaded, jobs pass unchanged: " .. tostring(advisor))
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  -- The site's own rules go here: the advisor then sees the job as they leave it.

  -- slurm-advisor, line 2 of 2: before the function returns slurm.SUCCESS.
  if type(advisor) == "table" then advisor.submit(job_desc, part_list, submit_uid) end

  return slurm.SUCCESS
end

-- slurmctld needs this function too. The advisor has no part in changes to a job.
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) -- luacheck: no unused args
  return slurm.SUCCESS
end

return slurm.SUCCESS
