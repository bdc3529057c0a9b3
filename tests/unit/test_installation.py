"""What `spotsupd init` would make: the configuration from answers, and the steps from what is there."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import Config, parse_config
from supervisor.errors import UsageError
from supervisor.installation.answers import (
    Answers,
    EtcdHere,
    amount,
    asked_keys,
    configuration,
    etcd_here,
    etcd_urls,
    section_of,
    without_ceiling,
)
from supervisor.installation.layout import (
    ETC,
    KEY_FILE,
    STATE,
    UNIT_ETCD,
    UNIT_PROGRAM,
    UNITS,
    Programs,
    etcd_environment,
    host_items,
    personal_items,
)
from supervisor.installation.plan import (
    Account,
    Admit,
    Facts,
    File,
    Folder,
    Found,
    Item,
    Keep,
    Make,
    Replace,
    plan,
)
from tests.unit.test_systemd import FOLDER

AWS = Answers("host", "aws", address="10.0.0.5", section={"regions": ["us-east-1"]})
SECRETS = {STATE / "etcd.password": b"password\n", KEY_FILE: b"k" * 32}
PROGRAMS = Programs(Path("/opt/tools/spotsup/bin/spotsupd"), Path("/usr/local/bin/etcd"))


def parsed(text: str) -> Config:
    return parse_config(tomllib.loads(text), "test")


def units() -> dict[str, str]:
    return {path.name: path.read_text() for path in FOLDER.iterdir()}


def here_of(answers: Answers) -> EtcdHere:
    here = etcd_here(parsed(configuration(answers)))
    assert here is not None
    return here


def items_of(answers: Answers = AWS) -> list[Item]:
    return host_items(configuration(answers), units(), PROGRAMS, SECRETS, here_of(answers))


def environment_of(answers: Answers) -> str:
    return etcd_environment(here_of(answers))


def making(items: Sequence[Item]) -> list[Make]:
    return [Make(each) for each in items]


def facts_of(items: Sequence[Item]) -> Facts:
    """A host on which all of them are."""
    paths = {
        each.path: Found(
            each.mode,
            each.owner,
            each.group,
            isinstance(each, Folder),
            each.data if isinstance(each, File) and not each.seed else None,
        )
        for each in items
        if not isinstance(each, Account)
    }
    return Facts(frozenset(each.name for each in items if isinstance(each, Account)), paths)


# -- answers ---------------------------------------------------------------------------------------------------


def test_the_configuration_of_a_host_has_an_etcd_with_tls_and_users() -> None:
    config = parsed(configuration(AWS))
    assert config.etcd.endpoints == ("https://127.0.0.1:2379",)
    assert config.etcd.node_endpoints == ("https://10.0.0.5:2379",)
    assert (config.etcd.user, config.etcd.ca) == ("spotsupd", "/var/lib/spotsup/tls/ca.crt")
    # `sudo -u spotsup spotsupd check` has another default folder than the unit.
    assert str(config.state) == "/var/lib/spotsup"
    assert config.cloud("aws") is not None
    assert config.cloud("local") is None


def test_the_configuration_of_one_user_has_an_embedded_etcd_that_is_secure() -> None:
    alone = parsed(configuration(Answers("personal", "local")))
    assert (alone.etcd.secure, alone.etcd.listen) == (True, "")
    assert alone.cloud("local") is not None
    shared = parsed(configuration(replace(AWS, kind="personal", address="fd00::5")))
    assert shared.etcd.listen == "[fd00::5]:2379"


def test_what_all_jobs_together_may_cost_is_in_the_configuration_or_said_to_be_missing() -> None:
    config = parsed(configuration(replace(AWS, usd_per_hour=amount("12.5"))))
    assert config.queue.cluster.usd_per_hour == 12.5
    assert without_ceiling(config) == ""
    without = configuration(replace(AWS, usd_per_hour=amount("none")))
    assert "[queue.cluster] usd_per_hour" in without_ceiling(parsed(without))
    assert without_ceiling(parsed(f"{without}[budget]\nusd_per_month = 100")) == ""
    assert without_ceiling(parsed(configuration(Answers("personal", "local")))) == ""
    for text in ("0", "-1", "nan", "inf", "$5", ""):
        with pytest.raises(UsageError, match="US dollars, as in 20, or none"):
            amount(text)


def test_a_laptop_that_nodes_do_not_reach_needs_no_address() -> None:
    section = section_of("aws", ["us-east-1"], ["reach=ssh"])
    config = parsed(configuration(Answers("personal", "aws", section=section)))
    assert (config.etcd.secure, config.etcd.listen) == (True, "")


def test_keys_of_a_section_are_given_as_text_and_have_the_models_types() -> None:
    settings = ["security_groups.us-east-1=sg-1, sg-2", "dead_man_s=7200", "public_address=false", "disk_gb=200"]
    settings += ['tags.a"b=c"d', "images.H100=ami-1"]
    section = section_of("aws", ["us-east-1", "us-east-1"], settings)
    found = parsed(configuration(replace(AWS, section=section))).cloud("aws")
    assert found is not None
    said = found.model_dump(include={"regions", "security_groups", "dead_man_s", "public_address", "disk_gb", "tags"})
    assert said == {
        "regions": ("us-east-1",),
        "security_groups": {"us-east-1": ("sg-1", "sg-2")},
        "dead_man_s": 7200.0,
        "public_address": False,
        "disk_gb": 200,
        "tags": {'a"b': 'c"d'},
    }
    tagged = section_of("gcp", ["r"], ["project=p", "network_tags=a,b"])
    assert (tagged["project"], tagged["network_tags"]) == ("p", ["a", "b"])


def test_what_a_cloud_cannot_do_without_is_asked() -> None:
    assert asked_keys("aws") == {"regions": "aws.regions"}
    assert "USER@HOST" in asked_keys("own")["hosts"]
    assert set(asked_keys("gcp")) == {"regions", "project"}
    assert set(asked_keys("azure")) == {"regions", "subscription", "resource_group"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("nothing", "say KEY=VALUE"),
        ("no_such_key=1", "has the keys"),
        ("tags.=1", "say KEY=VALUE"),
    ],
)
def test_a_setting_that_is_none_is_refused(settings: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        section_of("aws", (), [settings])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"address": ""}, "say under which name or address"),
        ({"address": "", "kind": "personal"}, "say under which name or address"),
        ({"address": "127.0.0.1"}, "no other computer reaches"),
        ({"address": "localhost"}, "no other computer reaches"),
        ({"address": "0.0.0.0"}, "no other computer reaches"),  # noqa: S104 - no binding
        ({"address": "169.254.1.1"}, "no other computer reaches"),
        ({"address": "10.0.0"}, "neither an address nor a DNS name"),
        ({"address": "https://10.0.0.5"}, "neither an address nor a DNS name"),
        ({"cluster": "Vision!"}, "cluster"),
        ({"section": {}}, "regions"),
        ({"section": {"regions": ["r"], "disk_gb": 5}}, "disk_gb"),
    ],
)
def test_answers_that_make_no_configuration_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        configuration(replace(AWS, **change))  # type: ignore[arg-type]


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1), max_size=4))
def test_any_text_comes_back_from_the_file_as_it_was(tags: dict[str, str]) -> None:
    answers = replace(AWS, section={"regions": ["r"], "tags": {f"t{key}": value for key, value in tags.items()}})
    try:
        text = configuration(answers)
    except UsageError:
        return  # a surrogate, or a tag that no cloud takes
    assert tomllib.loads(text)["aws"]["tags"] == answers.section["tags"]


# -- layout ----------------------------------------------------------------------------------------------------


def test_secrets_are_the_daemons_alone_and_the_units_start_what_is_installed() -> None:
    files = {each.path: each for each in items_of() if isinstance(each, File)}
    for path in (STATE / "cluster.key", STATE / "etcd.password"):
        assert (files[path].mode, files[path].owner, files[path].seed) == (0o600, "spotsup", True)
        assert "k" * 32 not in repr(files[path])
    assert files[ETC / "environment"].mode == 0o600
    for name in UNITS:
        text = files[Path("/etc/systemd/system") / name].data.decode()
        assert UNIT_PROGRAM not in text
        assert UNIT_ETCD not in text
    assert f"ExecStart={PROGRAMS.spotsupd} run" in files[Path("/etc/systemd/system/spotsupd.service")].data.decode()


def test_what_something_needs_is_made_before_it() -> None:
    items = items_of()
    assert isinstance(items[0], Account)
    made: set[Path] = {Path("/etc/systemd/system")}
    for each in items[1:]:
        assert not isinstance(each, Account)
        assert isinstance(each, Folder) or each.path.parent in made
        made.add(each.path)


def test_etcd_listens_where_nodes_reach_it() -> None:
    by_address = environment_of(replace(AWS, address="fd00::5"))
    assert "ETCD_LISTEN_CLIENT_URLS=https://127.0.0.1:2379,https://[fd00::5]:2379\n" in by_address
    # It cannot bind a name.
    by_name = environment_of(replace(AWS, address="etcd.example"))
    assert "ETCD_LISTEN_CLIENT_URLS=https://0.0.0.0:2379\n" in by_name
    assert "ETCD_ADVERTISE_CLIENT_URLS=https://etcd.example:2379\n" in by_name
    alone = environment_of(Answers("host", "local"))
    assert "ETCD_LISTEN_CLIENT_URLS=https://127.0.0.1:2379\n" in alone


# -- an etcd of one's own ----------------------------------------------------------------------------------------

OWN = replace(AWS, address="", etcd=etcd_urls("https://a.example, https://10.0.0.6:2379,https://[fd00::7]:4001"))


def test_an_etcd_of_ones_own_is_used_by_daemons_and_nodes_and_none_is_made() -> None:
    config = parsed(configuration(OWN))
    assert config.etcd.endpoints == ("https://a.example:2379", "https://10.0.0.6:2379", "https://[fd00::7]:4001")
    assert (config.etcd.node_endpoints, config.etcd.ca) == ((), "/etc/spotsup/etcd-ca.crt")
    assert config.etcd.user == "spotsupd"
    assert etcd_here(config) is None
    items = host_items(configuration(OWN), units(), PROGRAMS, SECRETS, None, b"PEM")
    files = {each.path.name: each for each in items if isinstance(each, File)}
    assert {*files} == {
        *("spotsupd.toml", "environment", "etcd-ca.crt"),
        *("etcd.password", "cluster.key", "spotsupd.service"),
    }
    assert not files["etcd-ca.crt"].seed, "another CA is shown, and taken with --replace"


def test_an_etcd_that_others_made_on_this_computer_is_left_to_them() -> None:
    text = configuration(AWS)
    assert etcd_here(parsed(text.replace("/var/lib/spotsup/tls/ca.crt", "/etc/ssl/ca.crt"))) is None
    assert etcd_here(parsed(text.replace("127.0.0.1", "10.0.0.9"))) is None


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ("http://a:2379", "without TLS .* write https://"),
        ("https://a,https://b,http://c", "--etcd http://c: without TLS"),
        ("a,b,c", "say https://HOST:2379"),
        ("etcd-v3.5.33-linux-amd64.tar.gz", "goes to /usr/local/bin/etcd"),
        ("https://a/x", "say https://HOST:2379"),
        ("https://root:secret@a", "say https://HOST:2379"),
        ("https://a:99999", "out of range"),
        ("https://a,https://a:2379", "name each member once"),
        (",", "name each member once"),
    ],
)
def test_what_names_no_etcd_is_refused(urls: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        etcd_urls(urls)


# -- plan ------------------------------------------------------------------------------------------------------


def test_on_an_empty_host_all_is_made_and_then_nothing_is_left() -> None:
    items = items_of()
    assert plan(items, Facts()) == (making(items), [])
    assert plan(items, facts_of(items)) == ([], [])


def test_wherever_it_was_interrupted_it_goes_on_there() -> None:
    items = items_of()
    for count in range(len(items)):
        assert plan(items, facts_of(items[:count])) == (making(items[count:]), [])


def test_a_file_that_differs_is_kept_or_replaced_and_its_difference_shown() -> None:
    file = File(Path("/etc/x"), b"a\nb\n", 0o640)
    facts = Facts(paths={file.path: Found(0o600, "me", "me", is_folder=False, data=b"a\nmine\n")})
    (kept,), _ = plan([file], facts)
    assert isinstance(kept, Keep)
    assert "-mine" in str(kept)
    assert "+b" in str(kept)
    (replaced,), _ = plan([file], facts, replace=True)
    assert isinstance(replaced, Replace)
    assert "keep the old one as x.old" in str(replaced)
    (secret,), _ = plan([replace(file, secret=True)], facts)
    assert "mine" not in str(secret)


def test_a_seed_is_never_compared_but_its_mode_is_put_right() -> None:
    seed = File(Path("/k"), b"new", 0o600, "spotsup", "spotsup", seed=True)
    facts = Facts(paths={seed.path: Found(0o644, "spotsup", "spotsup", is_folder=False)})
    assert plan([seed], facts, replace=True) == ([Admit(seed, "spotsup:spotsup, mode 644")], [])


def test_a_persons_own_folder_keeps_its_mode_and_a_hosts_gets_the_right_one() -> None:
    for seed in (True, False):
        folder = Folder(Path("/s"), 0o700, "me", "me", seed=seed)
        facts = Facts(paths={Path("/s"): Found(0o755, "me", "me", is_folder=True)})
        assert plan([folder], facts) == ([] if seed else [Admit(folder, "me:me, mode 755")], [])


def test_what_is_in_the_way_is_a_problem_before_anything_is_done() -> None:
    items = personal_items(Config(state_dir="/s"), Path("/c/spotsupd.toml"), "", b"k" * 32, "me", "me")
    facts = Facts(paths={Path("/s"): Found(0o644, "me", "me", is_folder=False)})
    _, problems = plan(items, facts)
    assert problems == ["/s is a file: move it away"]
