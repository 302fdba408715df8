"""With what credentials token streams are read from S3."""

import json
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import s3
from token_data import batches

SPEC = "lanes=4,window=3,seq_len=16,seed=7"


class Credentials(BaseHTTPRequestHandler):
    """Gives out credentials that live for some seconds, each time others."""

    def do_GET(self):
        given = self.server.given
        given.append(time.time() + self.server.life)
        until = datetime.fromtimestamp(given[-1], timezone.utc).strftime("%FT%TZ")
        keys = {"AccessKeyId": s3.KEY, "SecretAccessKey": s3.SECRET}
        body = json.dumps({**keys, "Token": f"token-{len(given) - 1}", "Expiration": until})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass


def test_credentials_that_expire_are_fetched_anew(box, bucket, front):
    folder, _ = bucket
    with box.mount(folder, spec=SPEC) as m:
        steps = range(m.config()["steps_per_cycle"])
        want = batches(m, steps)

    keeper = ThreadingHTTPServer(("127.0.0.1", 0), Credentials)
    keeper.given, keeper.life = [], 2
    threading.Thread(target=keeper.serve_forever, daemon=True).start()

    def refuse(headers):
        token = headers.get("x-amz-security-token", "")
        number = int(token.removeprefix("token-") or 0) if token.startswith("token-") else None
        if number is None:
            return 403, "AccessDenied"
        return (400, "ExpiredToken") if time.time() > keeper.given[number] else None

    front.refuse = refuse
    env = s3.environment(front.port)
    del env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
    env["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"http://127.0.0.1:{keeper.server_port}/keys"
    (box.path / "authorization").write_text("let me in")
    env["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = str(box.path / "authorization")
    try:
        with box.mount("s3://bucket/data", "--budget", "100KB", spec=SPEC, env=env) as m:
            first = len(keeper.given)
            for part in range(3):
                share = steps[part * len(steps) // 3 : (part + 1) * len(steps) // 3]
                assert batches(m, share) == want[share.start : share.stop]
                # Longer than any credentials live.
                time.sleep(2.5)
            assert len(keeper.given) > first
            said = m.errors() + m.read(".batchfs/config.json").decode()
            assert "token-" not in said and s3.SECRET not in said
    finally:
        keeper.shutdown()
        keeper.server_close()


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
    said = box.fails("index", "s3://bucket/data", env=env, names=["s3://bucket/data"])
    assert "AuthorizationHeaderMalformed" in said and s3.KEY not in said
    assert box.run("index", "s3://bucket/data", "--storage-option", "region=us-east-1", env=env)
