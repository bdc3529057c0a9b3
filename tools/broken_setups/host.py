"""What is wrong on the daemon's own host, and with etcd."""

from __future__ import annotations

from tools.broken_setups.row import CONFIG, ETCD, STATE, BrokenSetup

_SECURE = (
    "Give etcd TLS and users (docs/install.md#on-a-host), set etcd.ca, etcd.user and etcd.password_file, and name its "
    "https addresses in the nodes' network in etcd.node_endpoints; or, where nodes have no route to it, set "
    '`reach = "ssh"` for that cloud'
)
_FILE = "{folder}/spotsupd.toml"
_ETCD = "etcd at {etcd} cannot be used"
_MARK = "the journal of cluster default in etcd belongs to a cluster.key with mark {mark}, and"
_COPY = "copy the key from another daemon's state folder or a backup, or set another `cluster`"
_WRITABLE = "make room there, run this as the daemon's user, or set state_dir"

ROWS = (
    BrokenSetup(
        "config-missing",
        CONFIG,
        "no such file",
        "",
        f"cannot read the configuration {_FILE}: No such file or directory",
    ),
    BrokenSetup(
        "config-not-toml",
        CONFIG,
        "a quotation mark is missing",
        "",
        f"{_FILE} is not TOML: …(at line 1, column 30)",
    ),
    BrokenSetup(
        "config-unknown-key",
        CONFIG,
        "a key that does not exist",
        "",
        f"{_FILE}: unknown key `slack.webhook`; known here: webhook_file",
    ),
    BrokenSetup(
        "config-unknown-section",
        CONFIG,
        "a table that does not exist",
        "",
        (f"{_FILE}: unknown key `amazon`; known here: local, aws, gcp, azure, own, cluster, state_dir, etcd, …"),
    ),
    BrokenSetup(
        "config-wrong-type",
        CONFIG,
        "one region where a list is meant",
        "",
        f"{_FILE}: `aws.regions` is 'us-east-1'; write a list, such as [us-east-1]",
    ),
    BrokenSetup(
        "config-wrong-unit",
        CONFIG,
        "a time with its unit",
        "",
        f"{_FILE}: `timing.suspect_s` is '30s'; write a number, without quotes and without a unit",
    ),
    BrokenSetup(
        "config-too-small",
        CONFIG,
        "a dead-man switch of a minute",
        "",
        f"{_FILE}: `aws.dead_man_s`: a dead-man switch needs at least 1800 s, or 0 for none",
    ),
    BrokenSetup(
        "config-ssh-user",
        CONFIG,
        "a login name that no Linux user has",
        "",
        f"{_FILE}: `aws.ssh_user` is 'EC2-User': string should match pattern '^[a-z_][a-z0-9_-]{{0,31}}$'",
    ),
    BrokenSetup(
        "config-order-of-times",
        CONFIG,
        "two times that do not fit together",
        "",
        f"{_FILE}: `timing`: tick_s (10 s) must be smaller than leader_ttl_s (6 s)",
    ),
    BrokenSetup(
        "config-cluster-name",
        CONFIG,
        "a cluster's name with a space",
        "",
        f"{_FILE}: `cluster` is 'Vision Team': string should match pattern '^[a-z][a-z0-9-]{{0,30}}$'",
    ),
    BrokenSetup(
        "config-required-key",
        CONFIG,
        "a required key is missing",
        "",
        f"{_FILE}: `gcp.project` is missing",
    ),
    BrokenSetup(
        "config-listen-without-tls",
        CONFIG,
        "an embedded etcd that listens without TLS",
        "",
        (f"{_FILE}: `etcd`: listen needs secure = true: an etcd without TLS and users is for loopback only"),
    ),
    BrokenSetup(
        "config-relative-path",
        CONFIG,
        "a relative path",
        "",
        ("state_dir is 'spotsup-state', which depends on the folder in which spotsupd starts: write an absolute path"),
    ),
    BrokenSetup(
        "config-socket-path",
        CONFIG,
        "a path that is too long for a socket",
        "",
        (
            "the socket path {socket} has {bytes} bytes, and Unix sockets take 107: set api.socket (or "
            "--socket) to a shorter one"
        ),
    ),
    BrokenSetup(
        "config-no-cloud",
        CONFIG,
        "no cloud",
        "clouds, set up",
        "no cloud is configured: add a section for one of [local], [aws], [gcp], [azure], [own]",
    ),
    BrokenSetup(
        "config-plain-etcd",
        CONFIG,
        "rented machines, and an etcd without TLS",
        "",
        f"[aws] rents machines, which cannot be given etcd at http://10.0.0.5:2379: it is not encrypted. {_SECURE}",
        program="spotsupd run",
    ),
    BrokenSetup(
        "config-loopback-etcd",
        CONFIG,
        "rented machines, and an etcd on loopback",
        "",
        (
            "[aws] rents machines, which cannot be given etcd at https://127.0.0.1:2379: that address is this "
            f"computer's own. {_SECURE}"
        ),
        program="spotsupd run",
    ),
    BrokenSetup(
        "config-no-users",
        CONFIG,
        "rented machines, and an etcd without users",
        "",
        (
            "[aws] rents machines, and every program on them could change all that is in etcd, which has "
            f"no users. {_SECURE}"
        ),
        program="spotsupd run",
    ),
    BrokenSetup(
        "state-below-a-file",
        STATE,
        "the folder is below a file",
        "ssh, key",
        ("{folder}/file/state/cluster.key cannot be created, {folder}/file is not a folder: set state_dir"),
        also=("local, answer",),
    ),
    BrokenSetup(
        "state-in-use",
        STATE,
        "a second daemon with the same folder",
        "",
        "another spotsupd uses the state folder {folder}/state: stop it, or set another state_dir",
        program="spotsupd run",
    ),
    BrokenSetup(
        "state-full",
        STATE,
        "its disk is full",
        "state, folder",
        f"{{folder}}/disk cannot be written (No space left on device): {_WRITABLE}",
    ),
    BrokenSetup(
        "state-read-only",
        STATE,
        "its file system is mounted read-only",
        "state, folder",
        f"{{folder}}/disk cannot be written (Read-only file system): {_WRITABLE}",
    ),
    BrokenSetup(
        "key-readable",
        STATE,
        "others may read the cluster's key",
        "ssh, key",
        "{folder}/state/cluster.key is readable by others (mode 644): `chmod 600` it",
    ),
    BrokenSetup(
        "key-cut",
        STATE,
        "the key is not complete",
        "ssh, key",
        "{folder}/state/cluster.key holds 31 bytes instead of 32; restore it from a backup",
    ),
    BrokenSetup(
        "key-of-another-cluster",
        STATE,
        "another cluster's key",
        "etcd, journal",
        f"{_MARK} {{folder}}/state/cluster.key is another one (mark {{own}}): {_COPY}",
    ),
    BrokenSetup(
        "key-lost",
        STATE,
        "no key, and etcd has a journal",
        "etcd, journal",
        f"{_MARK} there is no {{folder}}/state/cluster.key: {_COPY}",
    ),
    BrokenSetup(
        "journal-newer",
        STATE,
        "jobs of a newer version",
        "etcd, journal",
        (
            "/spotsup/default/world/jobs/job was written by a newer spotsupd (it has `colour`): run the "
            "newer version, or restore an older backup"
        ),
    ),
    BrokenSetup(
        "journal-older",
        STATE,
        "jobs of an older version",
        "etcd, journal",
        (
            "/spotsup/default/world/jobs/job was written by an older spotsupd (schema 0; this one reads "
            "…): cancel the job with the older version, then submit it again with this one"
        ),
    ),
    BrokenSetup(
        "etcd-down",
        ETCD,
        "it does not run",
        "etcd, answer",
        (
            f"{_ETCD} (…Connection refused)): start it, set etcd.endpoints, or let spotsupd start one "
            "(--embedded-etcd, also here)"
        ),
    ),
    BrokenSetup(
        "etcd-another-program",
        ETCD,
        "another program has the port",
        "etcd, answer",
        (f"{_ETCD} (…this is no answer of etcd: …): another program answers there: correct etcd.endpoints"),
    ),
    BrokenSetup(
        "etcd-plain-for-tls",
        ETCD,
        "http for https",
        "etcd, answer",
        f"{_ETCD} (…): does it want TLS? Then write https:// in etcd.endpoints, and set etcd.ca",
    ),
    BrokenSetup(
        "etcd-tls-for-plain",
        ETCD,
        "https for http",
        "etcd, answer",
        (f"{_ETCD} (…): has it TLS there? Otherwise write http:// in etcd.endpoints, or start it with a certificate"),
    ),
    BrokenSetup(
        "etcd-wrong-ca",
        ETCD,
        "another CA",
        "etcd, answer",
        (f"{_ETCD} (…CERTIFICATE_VERIFY_FAILED…): set etcd.ca to the certificate of the CA that made etcd's"),
    ),
    BrokenSetup(
        "etcd-no-ca-file",
        ETCD,
        "no file with the CA",
        "etcd, set up",
        ("etcd.ca names {folder}/nowhere.pem, which does not exist: correct it, or give the daemon's user access"),
    ),
    BrokenSetup(
        "etcd-certificate-expired",
        ETCD,
        "its certificate has expired",
        "etcd, answer",
        (
            f"{_ETCD} (…certificate has expired…): renew etcd's certificate (the daemon's start does, if `spotsupd "
            "init` made it), or set this computer's clock"
        ),
    ),
    BrokenSetup(
        "etcd-certificate-not-yet-valid",
        ETCD,
        "its certificate is not valid yet: one of the clocks is wrong",
        "etcd, answer",
        (
            f"{_ETCD} (…certificate is not yet valid…): set this computer's clock, or that of the one that made the "
            "certificate: it is valid from later on"
        ),
    ),
    BrokenSetup(
        "etcd-certificate-of-another-name",
        ETCD,
        "its certificate is for another address",
        "etcd, answer",
        (
            f"{_ETCD} (…certificate is not valid for '127.0.0.1'…): make etcd a certificate for it, or correct "
            "etcd.endpoints"
        ),
    ),
    BrokenSetup(
        "etcd-wrong-password",
        ETCD,
        "a wrong password",
        "etcd, answer",
        (
            f"{_ETCD} (etcd does not accept user 'spotsupd': …): correct etcd.user, or the password in "
            "the file that etcd.password_file names"
        ),
    ),
    BrokenSetup(
        "etcd-no-password-file",
        ETCD,
        "no file with the password",
        "etcd, set up",
        "etcd.password_file names {folder}/nowhere, which cannot be read: No such file or directory",
    ),
    BrokenSetup(
        "etcd-no-login",
        ETCD,
        "it has users, and none is configured",
        "etcd, answer",
        f"{_ETCD} (…user name is empty): it has users: set etcd.user and etcd.password_file",
    ),
    BrokenSetup(
        "etcd-without-users",
        ETCD,
        "it has no users yet",
        "etcd, answer",
        (
            f"{_ETCD} (…authentication is not enabled): it has no users: make them with `spotsupd "
            "etcd-users`, or remove etcd.user and etcd.password_file"
        ),
    ),
    BrokenSetup(
        "etcd-user-without-role",
        ETCD,
        "its user may not do enough",
        "etcd, answer",
        f"{_ETCD} (…permission denied): give the user of etcd.user the role root",
    ),
    BrokenSetup(
        "etcd-open-to-everyone",
        ETCD,
        "a version whose users can be passed by",
        "etcd, users",
        (
            "etcd … lets everyone who reaches its port read and change everything, without a login (CVE-2026-33343): "
            "install etcd 3.5.33, 3.6.14, 3.7.1 or newer (docs/install.md#an-etcd-that-is-closed); until then let only "
            "machines that you trust reach it"
        ),
    ),
    BrokenSetup(
        "etcd-full",
        ETCD,
        "its space is used up",
        "etcd, journal",
        (
            "etcd refuses writes because its space quota is used up: training goes on, nothing new "
            "starts until an operator frees space and disarms the alarm (docs/operations.md)"
        ),
    ),
)
