#!/usr/bin/env bash
# Everything that says whether this repository is in order: format, lints, unit, doc and end-to-end tests.
#
#   tests/run.sh           what every change has to pass
#   tests/run.sh --full    also the long tests:
#     unit            those that take minutes, 9 GiB of memory or 5 GB of disk; thousands of killed writers
#     end-to-end      millions of steps and names, 500 killed writers, sources that hang, the benchmarks
#     python-package  on each Python from 3.10 on, and on the newest with PyTorch, JAX, numba, datasets
#                     and loaderx, which take 6 GB of disk
#
# Works from any folder. As root it installs what is missing (Debian, Ubuntu); as another user it
# says what is missing, and the tests that need it are skipped with the reason. Python packages come
# from PyPI (or pip's mirror) into the target folder. The last lines say what ran, and what was skipped and why.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

full=false
for arg in "$@"; do
    case $arg in
        --full) full=true ;;
        -h | --help)
            sed -n '2,/^set/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        *)
            echo "tests/run.sh: unknown argument: $arg (there is --full)" >&2
            exit 2
            ;;
    esac
done

stage=start
ran=()
skipped=()
began=$SECONDS

finish() {
    local code=$?
    local skips=nothing
    if ((${#skipped[@]})); then
        printf '\n=== skipped\n'
        printf '%s\n' "${skipped[@]}"
        skips="what is said above"
    fi
    local done=nothing
    if ((${#ran[@]})); then
        done=$(printf '%s, ' "${ran[@]}")
        done=${done%, }
    fi
    echo
    if ((code == 0)); then
        echo "tests/run.sh: PASSED in $((SECONDS - began)) s. ran: $done; skipped: $skips"
    else
        echo "tests/run.sh: FAILED in stage '$stage' (exit $code). passed before: $done; skipped: $skips"
    fi
}
trap finish EXIT

# stage NAME COMMAND...: runs it, and ends the script if it fails.
stage() {
    stage=$1
    shift
    local since=$SECONDS
    printf '\n=== %s\n' "$stage"
    "$@"
    printf -- '--- %s: %s s\n' "$stage" "$((SECONDS - since))"
    ran+=("$stage")
}

has() { command -v "$1" > /dev/null 2>&1; }

# noted COMMAND...: runs tests, and adds what they say of those that they skip to the last lines.
noted() {
    local log=$target/$stage.log times why
    # With --show-output the tests of Rust say what they skip, and all that they print otherwise.
    "$@" 2>&1 | tee "$log" | awk '/^(failures|test result):/ { hide = 0 } /^successes:$/ { hide = 1 } !hide { print; fflush() }'
    while read -r times why; do
        skipped+=("$stage: $times x $why")
    done < <(sed -nE -e 's/^skipped: (.*)/1 \1/p' -e 's/^SKIPPED \[([0-9]+)\] [^ ]+ (.*)/\1 \2/p' "$log" \
        | awk '{ n = $1; sub(/^[0-9]+ /, ""); times[$0] += n } END { for (w in times) print times[w], w }' | sort)
}

# A Python that we may use: 3.10 or newer, with what `venv` needs.
find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 python3.10; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' \
            > /dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
}

# A Python of an environment with loaderx, which the tests of its format want; it needs 3.12.
# Prints why there is none, if there is none.
prepare_loaderx() {
    local name found venv=$target/loaderx-venv
    local pyenv=${PYENV_ROOT:-$HOME/.pyenv}/versions
    if ! cmp -s tests/loaderx.txt "$venv/installed.txt"; then
        for name in python3.14 python3.13 python3.12 python3 "$pyenv"/3.1[2-9]*/bin/python; do
            if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' \
                > /dev/null 2>&1; then
                found=$name
                break
            fi
        done
        if [[ -z ${found:-} ]]; then
            echo "no Python 3.12 or newer with venv"
            return
        fi
        rm -rf "$venv"
        if ! "$found" -m venv "$venv" > /dev/null \
            || ! "$venv/bin/pip" install --quiet --disable-pip-version-check \
                -r tests/loaderx.txt > /dev/null; then
            echo "it cannot be installed"
            return
        fi
        cp tests/loaderx.txt "$venv/installed.txt"
    fi
}

# Commands and files that the tests use, and the packages that have them.
missing_packages() {
    has fusermount3 || echo fuse3
    has gcc || echo gcc
    [[ -e /usr/include/stdio.h ]] || echo libc6-dev
    has rsync || echo rsync
    has setfattr || echo attr
    has unshare || echo util-linux
    has ip || echo iproute2
    has openssl || echo openssl
    has busybox || echo busybox
    has useradd || echo passwd
    has node || echo nodejs
    has javac || echo default-jdk-headless
    has perl || echo perl
    has man || echo man-db
    has mandoc || echo mandoc
    [[ -n $(find_python) ]] || printf '%s\n' python3 python3-venv
}

prepare() {
    local wanted
    mapfile -t wanted < <(missing_packages)
    if ((${#wanted[@]})); then
        if ((EUID == 0)) && has apt-get; then
            echo "installing: ${wanted[*]}"
            export DEBIAN_FRONTEND=noninteractive
            apt-get update -q > /dev/null
            apt-get install -q -y --no-install-recommends "${wanted[@]}" > /dev/null
        else
            echo "missing, and only root with apt-get installs them: ${wanted[*]}"
            skipped+=("what needs ${wanted[*]}")
        fi
    fi
    ((EUID == 0)) || skipped+=("what needs root")
    if ((EUID == 0)) && [[ ! -e /dev/fuse ]]; then
        modprobe fuse 2> /dev/null || true
    fi
    [[ -e /dev/fuse ]] || skipped+=("what mounts: no /dev/fuse")

    has cargo || PATH=$HOME/.cargo/bin:$PATH
    has cargo || {
        echo "cargo is missing: install Rust from your distribution or with rustup" >&2
        return 1
    }
    cargo --version
    cargo fmt --version > /dev/null && cargo clippy --version > /dev/null || {
        echo "rustfmt or clippy is missing: rustup component add rustfmt clippy" >&2
        return 1
    }

    local python
    python=$(find_python)
    [[ -n $python ]] || {
        echo "no Python 3.10 or newer with venv: install python3 and python3-venv" >&2
        return 1
    }
    venv=$target/venv
    if ! cmp -s tests/requirements.txt "$venv/installed.txt"; then
        rm -rf "$venv"
        "$python" -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements.txt
        cp tests/requirements.txt "$venv/installed.txt"
    fi
    "$venv/bin/python" --version

    local why
    why=$(prepare_loaderx)
    if [[ -n $why ]]; then
        skipped+=("what needs loaderx: $why")
    else
        export BATCHFS_LOADERX_PYTHON=$target/loaderx-venv/bin/python
    fi
    prepare_s3
    prepare_hip
}

# The tests of object storage run against a real server, with signed requests.
prepare_s3() {
    BATCHFS_S3_SERVER=$(command -v s3s-fs) || BATCHFS_S3_SERVER=$target/s3/bin/s3s-fs
    if [[ ! -x $BATCHFS_S3_SERVER ]]; then
        cargo install --quiet s3s-fs --version 0.14.1 --features binary --locked --debug \
            --root "$target/s3" --target-dir "$target/s3/target" || {
            skipped+=("what needs an S3 server: s3s-fs could not be installed")
            return 0
        }
        rm -rf "$target/s3/target"
    fi
    export BATCHFS_S3_SERVER
}

# A real HIP runtime, which finds no device: unpacked, not installed.
prepare_hip() {
    hip_headers=
    local folder=$target/hip-real names
    if [[ ! -e $folder/done ]]; then
        has apt-get && has dpkg && apt-cache show libamdhip64-5 > /dev/null 2>&1 || {
            skipped+=("the real HIP runtime: no package libamdhip64-5 here")
            return 0
        }
        rm -rf "$folder"
        mkdir -p "$folder"
        mapfile -t names < <(apt-cache depends --recurse --no-recommends --no-suggests \
            --no-conflicts --no-breaks --no-replaces --no-enhances libamdhip64-5 | grep '^[a-z]' \
            | sort -u | grep -Ev '^(libc6|libgcc-s1|libstdc\+\+6|gcc-.*-base|libcrypt1|.*-data)$')
        (cd "$folder" && apt-get download -q "${names[@]}" libamdhip64-dev > /dev/null 2>&1) || {
            skipped+=("the real HIP runtime: its packages cannot be had")
            return 0
        }
        local package
        for package in "$folder"/*.deb; do
            dpkg -x "$package" "$folder"
            rm "$package"
        done
        touch "$folder/done"
    fi
    # Headers of the real one, and of libraries the stand-in, which needs no others to be linked.
    if [[ -e $folder/usr/include/hip/hip_runtime_api.h ]] && has gcc; then
        hip_headers=$folder/usr
        gcc -shared -fPIC -pthread -DLABEL='"linked"' -o "$hip_headers/lib/libamdhip64.so" \
            tests/rocm/standin_hip.c
    fi
    BATCHFS_HIP_REAL=$(find "$folder/usr/lib" -name 'libamdhip64.so.5' | head -1)
    BATCHFS_HIP_REAL_LIBS=$(dirname "$BATCHFS_HIP_REAL")
    export BATCHFS_HIP_REAL BATCHFS_HIP_REAL_LIBS
}

# One build serves the unit tests and the mounts: the same profile, targets and features.
build() {
    local targets=(--workspace --bins --tests --examples --locked --profile ci)
    cargo build "${targets[@]}"
    BATCHFS_BIN=$(cargo build "${targets[@]}" --quiet --message-format=json \
        | sed -n 's/.*"executable":"\([^"]*\/batchfs\)".*/\1/p' | tail -1)
    [[ -x $BATCHFS_BIN ]] || {
        echo "the build gave no program batchfs" >&2
        return 1
    }
    export BATCHFS_BIN
}

# Tests of dma-bufs, on a kernel that has them: in an emulated machine.
guest() {
    local code=0 log=$target/guest.log
    "$venv/bin/python" tests/guest/run.py | tee "$log" || code=${PIPESTATUS[0]}
    if ((code == 77)); then
        skipped+=("dma-bufs on a kernel with udmabuf: $(tail -1 "$log")")
        return 0
    fi
    return "$code"
}

# The functions of HIP as they are loaded, against the declarations of the crate hip-sys.
hip_signatures() {
    HIP_PATH=$hip_headers LD_LIBRARY_PATH=$hip_headers/lib cargo test --locked --profile ci \
        -p batchfs-dmabuf --features hip-sys-check --lib -- sys::hip
}

# Python programs that the package may be tried with, one for each minor version.
pythons() {
    local minor name
    for minor in 10 11 12 13 14; do
        for name in "python3.$minor" \
            "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python; do
            if "$name" -c "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, $minor))" \
                > /dev/null 2>&1; then
                command -v "$name"
                break
            fi
        done
    done
}

# The wheel, from the same build artefacts as all else.
python_wheel() {
    rm -rf "$target/wheels"
    "$venv/bin/maturin" build --quiet --locked --profile ci --manifest-path py/Cargo.toml \
        --interpreter "$venv/bin/python" --out "$target/wheels"
    wheel=$(echo "$target"/wheels/*.whl)
    local said
    said=$("$venv/bin/auditwheel" show "$wheel" | tr '\n' ' ')
    [[ $said == *'is consistent with the following platform tag: "manylinux_'* ]] || {
        echo "$wheel is no manylinux wheel: $said" >&2
        return 1
    }
    echo "$wheel"
}

# package_venv FOLDER PYTHON REQUIREMENTS: an environment with these, and this build's wheel.
package_venv() {
    if ! cmp -s "$3" "$1/installed.txt"; then
        rm -rf "$1"
        "$2" -m venv "$1"
        "$1/bin/pip" install --quiet --disable-pip-version-check -r "$3"
        cp "$3" "$1/installed.txt"
    fi
    "$1/bin/pip" install --quiet --disable-pip-version-check "$wheel"
    "$1/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
}

# The package on the oldest and the newest Python there is; with --full on all of them, and on the
# newest with all its consumers: PyTorch alone is 5 GB.
python_package() {
    local found program minor
    mapfile -t found < <(pythons)
    local newest=${found[-1]} oldest=${found[0]}
    local all=$full
    if $full && ! "$newest" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
        all=false
        skipped+=("the package with PyTorch, JAX, loaderx and others: no Python 3.12 or newer")
    fi
    if $all; then
        package_venv "$target/venv-py" "$newest" py/tests/requirements.txt
        "$target/venv-py/bin/python" --version
        noted "$target/venv-py/bin/python" -m pytest py/tests --full --timeout 1200
        noted "$target/venv-py/bin/python" -m pytest tests/e2e/test_torch.py
    elif ! $full; then
        skipped+=("the package with PyTorch, JAX, loaderx and others (--full)")
    fi
    for program in "${found[@]}"; do
        if $full; then
            ! $all || [[ $program != "$newest" ]] || continue
        else
            [[ $program == "$newest" || $program == "$oldest" ]] || continue
        fi
        minor=$("$program" -c 'import sys; print("3.%d" % sys.version_info[1])')
        package_venv "$target/venv-py$minor" "$program" py/tests/requirements-light.txt
        "$target/venv-py$minor/bin/python" --version
        noted "$target/venv-py$minor/bin/python" -m pytest py/tests -q
    done
}

python_style() {
    "$venv/bin/ruff" check .
    "$venv/bin/ruff" format --check .
}

target=${CARGO_TARGET_DIR:-$PWD/target}
[[ $target == /* ]] || target=$PWD/$target
cargo_test=(cargo test --workspace --locked --profile ci)
pytest=(-m pytest tests/e2e)
if $full; then
    # But those that measure: they assert nothing, and need a release build.
    ignored=(--include-ignored --skip speed)
    # A test that hangs ends in a failure, but not one that shares its cores with others.
    pytest+=(--full --timeout 1200 --ignore tests/e2e/test_torch.py)
else
    ignored=()
    skipped+=("long tests (--full)")
fi

stage prepare prepare
stage format cargo fmt --all --check
stage python-style python_style
stage clippy cargo clippy --workspace --all-targets --locked --profile ci -- -D warnings
stage build build
stage unit noted "${cargo_test[@]}" -- --show-output "${ignored[@]}"
if [[ -e sampler/tests/order_reference.py ]]; then
    stage order-reference "$venv/bin/python" sampler/tests/order_reference.py
else
    skipped+=("order-reference: no such file")
fi
if [[ -n $hip_headers ]]; then
    stage hip-signatures hip_signatures
else
    skipped+=("hip-signatures: no headers of HIP")
fi
stage guest guest
stage end-to-end noted "$venv/bin/python" "${pytest[@]}"
stage python-wheel python_wheel
stage python-package python_package
