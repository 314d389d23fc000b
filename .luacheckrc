-- For `luacheck slurm tests/hook`. job_submit/lua: slurmctld gives the table `slurm` and calls two functions.
std = "min"
max_line_length = 120
read_globals = { "slurm" }
files["slurm/job_submit.lua"] = { globals = { "slurm_job_submit", "slurm_job_modify" } }
files["tests/hook/driver.lua"] = { std = "max", globals = {
  "slurm", "_get_job_req_field_name", "_get_job_env_field_name", "_set_job_env_field",
} }
