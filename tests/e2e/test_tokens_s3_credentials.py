"""With what credentials token streams are read from S3."""

import json
import shutil
import ssl
import sys
import threading
import time
from collections import Counter
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import s3
from harness import errno_of, needs_root, needs_tool, wait_for
from token_data import batches

SPEC = "lanes=4,window=3,seq_len=16,seed=7"


class Credentials(BaseHTTPRequestHandler):
    """Gives out credentials that say how long they live, each time others: as a container's keeper
    of credentials does, and as the service does that gives them for a web identity."""

    def do_GET(self):
        server = self.server
        with server.lock:
            number = len(server.given)
            server.given.append(time.time() + server.life)
        until = datetime.fromtimestamp(server.given[number], timezone.utc).strftime("%FT%TZ")
        keys = {"AccessKeyId": s3.KEY, "SecretAccessKey": s3.SECRET, "Expiration": until}
        if self.command == "POST":
            server.asked.append(parse_qs(urlsplit(self.path).query))
            keys["SessionToken"] = f"token-{number}"
            body = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
            for name in ("Credentials", f"{ASSUME}Result", f"{ASSUME}Response"):
                body = f"<{name}>{body}</{name}>"
        else:
            server.asked.append(self.headers["Authorization"])
            body = json.dumps({**keys, "Token": f"token-{number}"})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_POST = do_GET

    def log_message(self, *args):
        pass


ASSUME = "AssumeRoleWithWebIdentity"


@pytest.fixture
def keeper():
    """A server that gives out credentials; `life` is for how many seconds these say that they are
    valid, `given` until when each is, `asked` with what each was asked for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Credentials)
    server.given, server.asked, server.life = [], [], 3600
    server.lock = threading.Lock()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def of_container(box, keeper, port: int) -> dict[str, str]:
    """An environment with credentials from the keeper."""
    env = s3.environment(port)
    del env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
    env["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"http://127.0.0.1:{keeper.server_port}/keys"
    (box.path / "authorization").write_text("let me in")
    env["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = str(box.path / "authorization")
    return env


def number_of(headers) -> int | None:
    """Which of the keeper's credentials a request was signed with."""
    token = headers.get("x-amz-security-token", "")
    return int(token.removeprefix("token-")) if token.startswith("token-") else None


def use_up(front, uses: int) -> list[int]:
    """Has credentials be refused after so many requests; which were, is in what is returned."""
    # The first are refused from the start, when there is but the listing.
    used, refused = Counter({0: uses}), []
    lock = threading.Lock()

    def refuse(headers):
        number = number_of(headers)
        if number is None:
            return 403, "AccessDenied"
        with lock:
            used[number] += 1
            if used[number] <= uses:
                return None
            refused.append(number)
        return 400, "ExpiredToken"

    front.refuse = refuse
    return refused


def rows_of_folder(box, folder) -> list[bytes]:
    with box.mount(folder, spec=SPEC) as m:
        return batches(m, range(m.config()["steps_per_cycle"]))


def test_credentials_that_expire_are_fetched_anew(box, bucket, front, keeper):
    want = rows_of_folder(box, bucket[0])
    keeper.life = 2

    def refuse(headers):
        number = number_of(headers)
        if number is None:
            return 403, "AccessDenied"
        return (400, "ExpiredToken") if time.time() > keeper.given[number] else None

    front.refuse = refuse
    env = of_container(box, keeper, front.port)
    with box.mount("s3://bucket/data", "--budget", "100KB", spec=SPEC, env=env) as m:
        first, steps = len(keeper.given), range(len(want))
        for part in range(3):
            share = steps[part * len(steps) // 3 : (part + 1) * len(steps) // 3]
            assert batches(m, share) == want[share.start : share.stop]
            # Longer than any credentials live.
            time.sleep(2.5)
        assert len(keeper.given) > first
        assert set(keeper.asked) == {"let me in"}
        said = m.errors() + m.read(".batchfs/config.json").decode()
        assert "token-" not in said and s3.SECRET not in said


def test_credentials_that_end_before_their_time_are_fetched_anew(box, bucket, front, keeper):
    """They say that they live for an hour; the server says otherwise, in the listing, too."""
    want = rows_of_folder(box, bucket[0])
    refused = use_up(front, 8)
    env = of_container(box, keeper, front.port)
    with box.mount("s3://bucket/data", "--budget", "100KB", spec=SPEC, env=env) as m:
        assert batches(m, range(len(want))) == want
        assert m.metrics()["failures_total"] == 0
        given = len(keeper.given)
        # All but those of now.
        assert given > 3 and set(range(given - 1)) <= set(refused)
        # Each is used up before others are asked for, however many readers there are.
        assert given - 2 <= (len(front.seen) - len(refused)) / 8
        assert "token-" not in m.errors()


def test_credentials_that_are_never_taken_are_an_error_soon(box, bucket, front, keeper):
    env = of_container(box, keeper, front.port)
    with box.mount("s3://bucket/data", "--budget", "100KB", spec=SPEC, env=env) as m:
        m.read("tokens/batch/0")
        use_up(front, 0)
        front.asked.clear()
        step = m.config()["steps_per_cycle"] // 2
        begun = time.monotonic()
        assert errno_of((m / f"tokens/batch/{step}").read_bytes) == "EACCES"
        assert time.monotonic() - begun < 45
        assert max(map(front.asked.count, front.asked)) <= 8
        said = m.errors()
        for part in ("ExpiredToken", "s3://bucket/data/", "such as are fetched anew"):
            assert part in said, said
        assert "token-" not in said
        front.refuse = lambda headers: None
        path = m / f"tokens/batch/{step}"
        wait_for(lambda: errno_of(path.read_bytes) is None, "it recovers")


def test_keys_that_were_given_and_have_expired_are_said_to_be(box, bucket, front):
    env = s3.environment(front.port, AWS_SESSION_TOKEN="a-session-token")
    front.refuse = lambda headers: (400, "ExpiredToken")
    names = ["s3://bucket/data", "ExpiredToken", "give credentials that are valid"]
    said = box.fails("index", "s3://bucket/data", env=env, names=names)
    assert len(front.seen) == 1, "there are no others"
    assert "a-session-token" not in said


@pytest.fixture
def certificate(box):
    """A certificate for this machine, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    paths = box.path / "cert.pem", box.path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here".split()
    command += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-out",
        paths[0],
        "-keyout",
        paths[1],
    ]
    box.tool(*command)
    return paths


def test_credentials_for_a_web_identity(box, bucket, front, keeper, certificate):
    """As in Kubernetes: a file whose content changes is exchanged for credentials."""
    want = rows_of_folder(box, bucket[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    keeper.socket = context.wrap_socket(keeper.socket, server_side=True)
    env = s3.environment(front.port)
    del env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
    identity = box.path / "identity"
    identity.write_text("identity-one")
    env["AWS_WEB_IDENTITY_TOKEN_FILE"] = str(identity)
    box.fails("index", "s3://bucket/data", env=env, names=["AWS_ROLE_ARN", "AWS_ACCESS_KEY_ID"])
    assert not front.seen and not keeper.asked
    env["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/reader"
    env["AWS_ENDPOINT_URL_STS"] = f"https://127.0.0.1:{keeper.server_port}"
    env["SSL_CERT_FILE"] = str(certificate[0])
    use_up(front, 30)
    with box.mount("s3://bucket/data", "--budget", "100KB", spec=SPEC, env=env) as m:
        half = len(want) // 2
        assert batches(m, range(half)) == want[:half]
        identity.write_text("identity-two")
        assert batches(m, range(half, len(want))) == want[half:]
        said = m.errors() + m.read(".batchfs/config.json").decode()
    assert {asked["Action"][0] for asked in keeper.asked} == {ASSUME}
    assert {asked["RoleArn"][0] for asked in keeper.asked} == {env["AWS_ROLE_ARN"]}
    shown = [asked["WebIdentityToken"][0] for asked in keeper.asked]
    assert shown == sorted(shown) and {*shown} == {"identity-one", "identity-two"}
    assert not any(secret in said for secret in ("identity-", "token-", s3.SECRET))


NO_CREDENTIALS = {
    "unreachable": "true",
    "dropped": f"ip route add {s3.METADATA}/32 dev lo",
    "silent": f"ip addr add {s3.METADATA}/32 dev lo",
}
"""What becomes of requests to the address that machines of a cloud have credentials at."""


@needs_root
@needs_tool("unshare", "ip")
@pytest.mark.parametrize("how", NO_CREDENTIALS)
def test_no_credentials_are_said_to_be_missing_soon(box, how):
    listens = f"s = socket.create_server(('{s3.METADATA}', 80))" if how == "silent" else ""
    waits = f"import socket, time\n{listens}\nprint('ready', flush=True)\ntime.sleep(1000)"
    network = f'ip link set lo up; {NO_CREDENTIALS[how]}; exec {sys.executable} -c "{waits}"'
    machine = box.start("unshare", "-n", "sh", "-ec", network)
    assert machine.stdout.readline() == "ready\n"
    env = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "us-east-1"}
    command = ["nsenter", "-t", machine.pid, "-n", box.program, "index", "s3://bucket/data"]
    begun = time.monotonic()
    done = box.tool(*command, env=env, check=False)
    # A server that is silent is given up after ten seconds.
    assert time.monotonic() - begun < 30
    assert done.returncode > 0
    for part in ("s3://bucket/data", "no credentials", "AWS_ACCESS_KEY_ID", "skip_signature"):
        assert part in done.stderr, done.stderr


def test_public_buckets_are_read_without_a_signature(box, bucket):
    folder, _ = bucket
    with s3.server(folder.parent.parent, signed=False) as port, s3.proxy(port) as front:
        signed = []
        front.refuse = lambda headers: signed.append(headers.get("Authorization"))
        env = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{front.port}", "AWS_REGION": "us-east-1"}
        option = ("--storage-option", "skip_signature=true")
        told = json.loads(box.run("index", "s3://bucket/data", "--json", *option, env=env).stdout)
        assert told["tokens"] == json.loads(box.run("index", folder, "--json").stdout)["tokens"]
        assert signed and not any(signed)


def test_a_wrong_region_is_said_as_the_server_says_it(box, bucket, front):
    front.refuse = lambda headers: (
        (400, "AuthorizationHeaderMalformed")
        if "/eu-west-9/" in headers.get("Authorization", "")
        else None
    )
    env = {**s3.environment(front.port), "AWS_REGION": "eu-west-9"}
    names = ["s3://bucket/data", "AuthorizationHeaderMalformed", "check the endpoint, its region"]
    assert s3.KEY not in box.fails("index", "s3://bucket/data", env=env, names=names)
    assert box.run("index", "s3://bucket/data", "--storage-option", "region=us-east-1", env=env)
