# The agent is a service that runs as a user who logs in: with his last session, logind would remove the job's shared memory.
user=@user@
loginctl enable-linger "$user"
[ "$(loginctl show-user "$user" -p Linger --value)" = yes ]
