"""Mistakes in FILE, in what clients meet, and on this machine."""

import subprocess
from contextlib import suppress

from tests.support.certificates import days_from_2020, make_certificate
from tests.support.mistakes import (
    CLIENT_KEYS,
    UNREACHABLE_NAME,
    USAGE,
    WARNING,
    WRONG,
    Stage,
    Table,
    read_from_its_start,
)
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST

HERE = Table()
mistake, setting = HERE.mistake, HERE.setting

A_CHOICE = "a choice, not a trouble: it would last for ever"

# FILE.


setting("misspelt_key", "unknown key proxy.lisen; the nearest is proxy.listen", proxy_lisen=f"{HOST}:1")
setting("a_brokers_key", "unknown key log.dirs", "belong in the file that broker.config names", log_dirs="/data")
setting("misspelt_choice", "mode = replicate: must be", mode="replicate")
setting("quoted_value", "admin.listen is in quotes", "leave them out", admin_listen=f'"{HOST}:1"')
setting("decimal_unit", "cache.memory.bytes = 1G: must be", cache_memory_bytes="1G")
setting("variable_not_set", "environment variable TIDE_PW is not set", upstream_sasl_password="${env:TIDE_PW}")
setting("file_not_there", "broker.config: /nowhere/server.properties", broker_config="/nowhere/server.properties")
setting("not_a_brokers_file", "remote.log.storage.manager.class.name is required", broker_config="/dev/null")
setting("plugin_that_we_lack", "x.Y", remote_log_storage_manager_class_name="x.Y")
setting("old_name", "tier.linger.ms is expert.tier.linger.ms now", code=WARNING, tier_linger_ms="5")
setting(
    "misspelt_plugin_key",
    "rsm.config.dirr is no key that is known",
    "nearest is rsm.config.dir",
    code=WARNING,
    rsm_config_dirr="/tier",
)
setting(
    "idle_plugin_key",
    "these keys have no effect here: rsm.config.delete.on.close",
    code=WARNING,
    rsm_config_delete_on_close="true",
)
setting(
    "misspelt_client_key",
    "is no key that is known",
    "the nearest is",
    code=WARNING,
    **{f"{CLIENT_KEYS}sasl.mechanis": "PLAIN"},
)
setting(
    "two_roles_at_one_address",
    "admin.listen",
    "is proxy.listen too",
    proxy_listen=f"{HOST}:19092",
    admin_listen=f"{HOST}:19092",
)
setting("wildcard_without_a_name", "set proxy.advertised.host", proxy_listen="0.0.0.0:19092")
setting(
    "budgets_beyond_the_sum", "raise it or lower one of them", memory_max_bytes="512 MiB", cache_memory_bytes="1 GiB"
)
setting("too_many_workers", "proxy.workers = 64: so many need memory.max.bytes", proxy_workers="64")
setting("key_without_encryption", "needs cache.encrypt = true", cache_encrypt_key_file="/dev/null")
setting("anybody_may_claim_an_address", "set proxy.protocol.trusted", proxy_protocol="true")
setting(
    "copier_beside_the_brokers",
    "copy.enabled = true: needs mode = standalone",
    copy_enabled="true",
    copy_topics="a",
    copy_staging_path="/nowhere",
)
setting(
    "staging_over_the_tier",
    "another copy.staging.path",
    mode="standalone",
    copy_enabled="true",
    copy_topics="a",
    copy_staging_path="/",
)
setting(
    "metadata_that_expires",
    "remote.log.metadata.topic.retention.ms = -1",
    mode="standalone",
    copy_enabled="true",
    copy_topics="a",
    copy_staging_path="/nowhere",
    rlmm_config_remote_log_metadata_topic_retention_ms="60000",
)


@mistake("begins with a byte order mark", "save it as UTF-8 without one", code=USAGE)
def byte_order_mark(stage: Stage) -> None:
    stage.head = "\xef\xbb\xbf# Tidegate\n"


@mistake("admin.listen is given in lines 1, ", "the last one counts", code=WARNING)
def key_given_twice(stage: Stage) -> None:
    stage.head = f"admin.listen={HOST}:1\n"


@mistake("environment variable TIDEGATE_PROXY_LISEN names no key", "nearest is TIDEGATE_PROXY_LISTEN", code=WARNING)
def misspelt_variable(stage: Stage) -> None:
    stage.environ["TIDEGATE_PROXY_LISEN"] = f"{HOST}:1"


@mistake("upstream.sasl.password: is required: upstream.security.protocol has SASL", code=USAGE)
def no_password(stage: Stage) -> None:
    del stage.properties["upstream.sasl.password"]


@mistake("brokers.jks is a JKS store, which only Java reads; convert it: keytool -importkeystore", code=USAGE)
def store_that_only_java_reads(stage: Stage) -> None:
    """The brokers' own identity is asked for."""
    stage.properties["metadata.identity"] = "broker"


@mistake("metadata.identity is not set, and both", "set metadata.identity to broker or upstream", code=WARNING)
def identity_that_nobody_chose(stage: Stage) -> None:
    del stage.properties["metadata.identity"]
    stage.properties[f"{CLIENT_KEYS}ssl.truststore.location"] = str(stage.kafka.certificate)


@mistake("Kerberos is not supported", code=USAGE)
def kerberos(stage: Stage) -> None:
    stage.properties["metadata.identity"] = "broker"
    module = "com.sun.security.auth.module.Krb5LoginModule required;"
    stage.properties |= {
        f"{CLIENT_KEYS}ssl.truststore.location": str(stage.kafka.certificate),
        f"{CLIENT_KEYS}sasl.jaas.config": module,
    }


@mistake("proxy.tls.sni.pattern", "needs proxy.tls.certificate.file", code=USAGE)
def names_without_tls(stage: Stage) -> None:
    del stage.properties["proxy.broker.ports"]
    stage.properties["proxy.tls.sni.pattern"] = "b$(nodeId).example.org"


# What clients meet.


@mistake("proxy.advertised.host tells clients", "not to be found by DNS; correct the name, or DNS")
def host_that_nobody_knows(stage: Stage) -> None:
    stage.properties["proxy.advertised.host"] = UNREACHABLE_NAME


@mistake("192.0.2.1", "no address of this machine", code=WARNING)
def host_of_another_machine(stage: Stage) -> None:
    stage.properties["proxy.advertised.host"] = "192.0.2.1"


@mistake(
    "proxy.tls.certificate.file is for localhost, 127.0.0.1", "not for 127.0.0.2, which proxy.advertised.host tells"
)
def certificate_for_another_host(stage: Stage) -> None:
    stage.properties |= {
        "proxy.advertised.host": "127.0.0.2",
        "proxy.tls.certificate.file": str(stage.kafka.certificate),
        "proxy.tls.key.file": str(stage.kafka.key),
    }


@mistake("proxy.tls.certificate.file expired at", "renew it")
def certificate_that_expired(stage: Stage) -> None:
    stage.certificate(HOST, days=days_from_2020(-50))


@mistake("proxy.tls.certificate.file expires at", "renew it", code=WARNING)
def certificate_that_expires_soon(stage: Stage) -> None:
    stage.certificate(HOST, days=days_from_2020(5))


@mistake("has no subject alternative name", f"make one with {HOST}")
def certificate_without_names(stage: Stage) -> None:
    stage.certificate()


@mistake("holds no certificate of the issuer", code=WARNING, only_check="the issuer may be a root that clients trust")
def certificate_without_its_issuer(stage: Stage) -> None:
    stage.certificate(HOST, issuer=make_certificate("ours"))


@mistake("holds no certificate of the issuer, CN=ours", "append it")
def certificate_with_that_of_another_issuer(stage: Stage) -> None:
    stage.certificate(HOST, issuer=make_certificate("ours"))
    with (stage.folder / "certificate.pem").open("ab") as chain:
        chain.write(make_certificate("of nobody").pem)


@mistake("proxy.tls.certificate.file", code=USAGE)
def key_of_another_certificate(stage: Stage) -> None:
    stage.show(make_certificate("one", [HOST]), key=make_certificate("two"))


setting("certificate_that_is_not_there", "proxy.tls.certificate.file", proxy_tls_certificate_file="/nowhere/server.pem")
setting("key_without_certificate", "needs proxy.tls.certificate.file", proxy_tls_key_file="/dev/null")


@mistake("is for 127.0.0.1 and not for 0x7f000001", "proxy.tls.sni.pattern tells clients: they refuse it")
def names_that_the_certificate_lacks(stage: Stage) -> None:
    """Broker 1 is 127.0.0.1 in hexadecimal: a name that leads here without DNS."""
    del stage.properties["proxy.broker.ports"]
    stage.certificate(HOST)
    stage.properties["proxy.tls.sni.pattern"] = "0x7f00000$(nodeId)"


@mistake(
    "clients on other machines reach themselves by it", code=WARNING, only_check="all clients may be on this machine"
)
def loopback_told_to_everybody(stage: Stage) -> None:
    stage.properties |= {"proxy.listen": f"0.0.0.0:{free_port()}", "proxy.advertised.host": HOST}
    stage.certificate(HOST)


# What is insecure.


setting(
    "pages_for_everybody",
    "can be reached from other machines and asks for no password",
    only_check=A_CHOICE,
    code=WARNING,
    admin_listen="0.0.0.0:19464",
)
setting(
    "rights_that_last",
    "authority.max.age.ms is 3600000",
    "still reads it from the tier",
    only_check=A_CHOICE,
    code=WARNING,
    authority_max_age_ms="3600000",
)


@mistake("to brokers all clients are ANONYMOUS", code=WARNING, only_check=A_CHOICE)
def clients_that_nobody_can_tell_apart(stage: Stage) -> None:
    stage.be_nobody("PLAINTEXT")
    stage.properties["upstream.bootstrap.servers"] = stage.kafka.address("PLAINTEXT")
    del stage.properties["upstream.ssl.ca.location"]


setting(
    "any_certificate",
    "any certificate of that authority passes for a broker's",
    only_check=A_CHOICE,
    code=WARNING,
    upstream_ssl_endpoint_identification_algorithm="none",
)


# This machine.


@mistake(
    "cannot listen on 127.0.0.1:",
    "which proxy.listen names: Address already in use; stop what listens there",
    ends=True,
)
def proxy_port_taken(stage: Stage) -> None:
    stage.properties["proxy.listen"] = stage.listener()


@mistake(
    "cannot listen on 127.0.0.1:",
    "which admin.listen names: Address already in use; stop what listens there",
    ends=True,
)
def admin_port_taken(stage: Stage) -> None:
    stage.properties["admin.listen"] = stage.listener()


@mistake("clients will not hear of broker 2", "Address already in use")
def a_brokers_port_taken(stage: Stage) -> None:
    port = stage.listener().rpartition(":")[2]
    stage.properties["proxy.broker.ports"] = f"1:{free_port()},2:{port},3:{free_port()}"


@mistake("clients will not hear of broker 3", "give it port 65536; name its port in proxy.broker.ports")
def port_beyond_the_last(stage: Stage) -> None:
    stage.properties |= {"proxy.broker.ports": f"1:{free_port()},2:{free_port()}", "proxy.broker.port.start": "65533"}


@mistake("which proxy.listen names: Cannot assign requested address; this machine has no such address", ends=True)
def anothers_address(stage: Stage) -> None:
    """One port for all brokers, which would each complain too."""
    del stage.properties["proxy.broker.ports"]
    stage.certificate(*(f"0x7f00000{node_id}" for node_id in (1, 2, 3)))
    stage.properties |= {"proxy.listen": "192.0.2.1:19092", "proxy.tls.sni.pattern": "0x7f00000$(nodeId)"}


@mistake(
    "cache.path",
    "cannot be written by this user",
    "so serve does not start; name a folder that belongs to it",
    code=USAGE,
)
def read_only_folder(stage: Stage) -> None:
    """root writes into what nobody may write, but not into the kernel's own folders."""
    stage.properties["cache.path"] = "/sys/kernel/tidegate"


@mistake("Not a directory", ", so serve does not start", code=USAGE)
def cache_below_a_file(stage: Stage) -> None:
    stage.properties["cache.path"] = str(stage.kafka.certificate / "cache")


@mistake("cache.path", "is in use by another process: name a folder for this one")
def cache_of_another_process(stage: Stage) -> None:
    stage.cache_of_another()


setting(
    "cache_larger_than_its_disk",
    "lower it, or use a larger disk",
    only_check="it is none before the disk is full: cache_on_a_full_disk",
    code=WARNING,
    cache_path="/tmp/tidegate-none",
    cache_disk_bytes="1024 TiB",
)
setting(
    "audit_log_nowhere",
    "cannot write /nowhere/audit.log, which audit.log names: No such file or directory; name a file in a folder that",
    ends=True,
    code=WRONG,
    audit_log="/nowhere/audit.log",
)
setting(
    "audit_log_that_is_a_folder",
    "cannot write /tmp, which audit.log names: Is a directory; name a file in a folder",
    ends=True,
    code=WRONG,
    audit_log="/tmp",
)
setting(
    "more_memory_than_there_is",
    "the kernel would kill it; lower the key, or raise the limit",
    code=WRONG,
    memory_max_bytes="1 TiB",
)


@mistake(
    "No space left on device; make room, or repair the disk; it is tried again by itself",
    needs="tmpfs",
    shown_by=read_from_its_start,
)
def cache_on_a_full_disk(stage: Stage) -> None:
    disk = stage.folder / "disk"
    disk.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", disk], check=True)
    stage.open.callback(lambda: subprocess.run(["umount", disk], check=True))
    with (disk / "of-somebody-else").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    stage.properties["cache.path"] = str(disk / "cache")


setting("more_connections_than_files", "LimitNOFILE=", code=WARNING, proxy_connections_max="1000000")
