"""`schema.registry.*`: who asks a registry, and that no secret of it is shown."""

from pathlib import Path

from tests.support.certificates import server_certificate
from tests.support.for_each import for_each
from tests.support.tier_config_files import load_tier_lines, tier_problems_of

PREFIX = "schema.registry."


def test_a_registry_is_known_by_its_keys(tmp_path: Path) -> None:
    certificate, key = server_certificate(tmp_path)
    lines = (
        f"{PREFIX}url=https://registry:8081/\n{PREFIX}basic.auth.user.info=${{env:REGISTRY}}\n"
        f"{PREFIX}ssl.ca.location={certificate}\n{PREFIX}ssl.certificate.location={certificate}\n"
        f"{PREFIX}ssl.key.location={key}\n{PREFIX}ssl.endpoint.identification.algorithm=none\n"
    )
    registry = load_tier_lines(tmp_path, lines, environ={"REGISTRY": "me:planted"}).schema_registry
    assert (registry.url, registry.user_info, registry.token) == ("https://registry:8081", "me:planted", None)
    assert registry.tls.ca_certificates_pem is not None
    assert registry.tls.private_key_pem is not None
    assert not registry.tls.verify_hostname
    assert "planted" not in repr(registry)
    assert load_tier_lines(tmp_path, "").schema_registry.url is None


@for_each(
    "lines, said",
    [
        (f"{PREFIX}url=http://me:planted@registry\n", "url = [hidden]: must not hold a user"),
        (f"{PREFIX}url=registry:8081\n", "must be an address that begins with http:// or https://"),
        (f"{PREFIX}basic.auth.user.info=planted\n", "must be user:password"),
        (f"{PREFIX}basic.auth.user.info=a:b\n{PREFIX}bearer.auth.token=planted\n", "keep one of them"),
        (f"{PREFIX}ssl.key.location=absent.key\n", f"needs {PREFIX}ssl.certificate.location"),
        (f"{PREFIX}ssl.ca.location=absent.pem\n", "cannot be read"),
        (f"{PREFIX}user=planted\n", "the nearest is schema.registry.url"),
    ],
)
def test_wrong_keys_are_one_problem_without_its_secret(tmp_path: Path, lines: str, said: str) -> None:
    (problem,) = tier_problems_of(tmp_path, lines)
    assert said in problem
    if "user=" not in lines:
        assert "planted" not in problem
