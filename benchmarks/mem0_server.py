"""mem0's self-hosted server for ``serving.py``, unchanged, out of a checkout of its repository.

Runs in an environment with mem0ai, pgserver (which brings PostgreSQL with pgvector) and ``server/requirements.txt``. The
model and the embedding are the scripted ones behind its OpenAI providers. Prints its address and serves until its standard
input ends. The first argument is ``fill`` (makes the database and stores memories) or ``serve``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from hashed_words import DIM, vectors_of
from mem0.vector_stores.pgvector import PGVector
from pgserver._commands import POSTGRES_BIN_PATH
from workload import random_sentence

USER = "nobody" if os.geteuid() == 0 else None
"""Who runs PostgreSQL, which refuses to be run by root."""
ROLE = {"user": "postgres", "password": "none", "host": "127.0.0.1"}


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@contextmanager
def postgres(data: Path) -> Iterator[int]:
    """PostgreSQL over a folder, which is made if there is none; yields its port."""
    new = not data.exists()
    if new:
        data.mkdir(mode=0o700)
    if USER is not None:
        subprocess.run(["chown", "-R", USER, data], check=True)
    if new:
        command = [POSTGRES_BIN_PATH / "initdb", "-D", data, "-A", "trust", "-U", ROLE["user"], "-E", "utf8"]
        subprocess.run(command, user=USER, stdout=subprocess.DEVNULL, check=True)
    port = free_port()
    command = [POSTGRES_BIN_PATH / "postgres", "-D", data, "-h", ROLE["host"], "-p", str(port), "-k", ""]
    with subprocess.Popen(command, user=USER, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: connection(port).close())
            yield port
        finally:
            process.terminate()


def connection(port: int) -> psycopg.Connection[tuple[object, ...]]:
    """A connection that needs no commits."""
    return psycopg.connect(dbname="postgres", port=port, autocommit=True, **ROLE)


def until(attempt: Callable[[], object], seconds: float = 60) -> None:
    """Try until it does not fail."""
    end = time.monotonic() + seconds
    while True:
        try:
            attempt()
            return
        except (OSError, psycopg.OperationalError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def fill(data: Path, owners: int, memories: int, seed: int) -> None:
    """Write rows as mem0's `add` does, into the table that mem0 makes; its index comes last, which is much faster."""
    rng = random.Random(seed)
    now = datetime(2026, 6, 1, 20, 1).isoformat() + "+00:00"
    with postgres(data) as port, connection(port) as database:
        database.execute("CREATE DATABASE mem0_app")
        table = PGVector("postgres", "memories", DIM, port=port, diskann=False, hnsw=True, **ROLE)
        table.create_col()
        database.execute("DROP INDEX memories_hnsw_idx")
        with database.cursor() as cursor, cursor.copy("COPY memories (id, vector, payload) FROM STDIN") as copy:
            for owner in range(owners):
                texts = [random_sentence(rng) for _ in range(memories)]
                for text, vector in zip(texts, vectors_of(texts).tolist(), strict=True):
                    payload = {"user_id": f"owner{owner}", "data": text, "text_lemmatized": text, "created_at": now}
                    payload |= {"hash": hashlib.md5(text.encode()).hexdigest(), "updated_at": now}
                    copy.write_row((str(uuid.UUID(int=rng.getrandbits(128))), str(vector), json.dumps(payload)))
        database.execute("SET maintenance_work_mem = '1GB'")
        database.execute("CREATE INDEX memories_hnsw_idx ON memories USING hnsw (vector vector_cosine_ops)")
        database.execute("VACUUM ANALYZE memories")
        table.connection_pool.close()


def serve(data: Path, checkout: Path, model_url: str) -> None:
    """Run the server as its compose file does, but for uvicorn's ``--reload``; without API keys and telemetry."""
    port, log = free_port(), data.with_name("mem0.log")
    url = f"http://127.0.0.1:{port}"
    with postgres(data) as database, log.open("w") as messages:
        environment = os.environ | {f"POSTGRES_{name.upper()}": value for name, value in ROLE.items()}
        environment |= {"POSTGRES_PORT": str(database), "POSTGRES_DB": "postgres", "AUTH_DISABLED": "true"}
        environment |= {"OPENAI_BASE_URL": model_url, "OPENAI_API_KEY": "none", "MEM0_TELEMETRY": "false"}
        environment |= {"MEM0_DIR": str(data.with_name("mem0")), "HISTORY_DB_PATH": str(data.with_name("history.db"))}
        how: dict[str, Any] = {"cwd": checkout / "server", "env": environment, "stdout": messages, "stderr": messages}
        migrated = subprocess.run([sys.executable, "-m", "alembic", "upgrade", "head"], check=False, **how)
        command = [sys.executable, "-m", "uvicorn", "main:app", "--host", "127.0.0.1", "--port", str(port)]
        with subprocess.Popen(command, **how) as process:
            try:
                until(lambda: urllib.request.urlopen(f"{url}/openapi.json").close())
                # By its own door: the length of vectors has no environment variable.
                lengths = {
                    "vector_store": {"config": {"embedding_model_dims": DIM}},
                    "embedder": {"config": {"embedding_dims": DIM}},
                }
                head, body = {"Content-Type": "application/json"}, json.dumps(lengths).encode()
                urllib.request.urlopen(urllib.request.Request(f"{url}/configure", body, head)).close()
                print(url, flush=True)
                sys.stdin.read()
            except OSError as error:
                raise SystemExit(f"error: {error} (alembic: {migrated.returncode})\n{log.read_text()[-3000:]}") from error
            finally:
                process.terminate()


def main() -> None:
    """Fill or serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    filling, serving = commands.add_parser("fill"), commands.add_parser("serve")
    for command in (filling, serving):
        command.add_argument("data", type=Path, help="folder of the database")
    for name in ("owners", "memories", "seed"):
        filling.add_argument(name, type=int)
    serving.add_argument("checkout", type=Path, help="of github.com/mem0ai/mem0")
    serving.add_argument("model_url", help="base URL of the scripted model")
    options = parser.parse_args()
    if options.command == "fill":
        fill(options.data, options.owners, options.memories, options.seed)
    else:
        serve(options.data, options.checkout, options.model_url)


if __name__ == "__main__":
    main()
