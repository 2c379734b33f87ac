# scripts/demo and scripts/test source this file: `set_up EXTRA` makes a complete .venv in the
# repository, or ends the script with one line that says what to do. EXTRA is one of setup.py's extras, or empty.
# Afterwards the repository is the current folder, .venv/bin is first in PATH, and programs use one thread unless
# OMP_NUM_THREADS is set.

unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
repository="$(pwd -P)"
venv="$repository/.venv"
unfinished="$venv/.xrep-unfinished" # .venv is being made, or does not have all packages yet
made_for="$venv/.xrep-made-for"     # where .venv was made; it holds absolute paths, so it cannot be moved or copied

stop() {
  echo "$0: error: $1" >&2
  exit 2
}

check_python() {
  local python="${PYTHON:-python3}" another="name another: PYTHON=python3.12 $0"
  command -v "$python" >/dev/null || stop "there is no '$python'; install Python 3.10-3.13, or $another"
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' ||
    stop "'$python' is $("$python" -V 2>&1), and xrep needs Python 3.10-3.13; install one, or $another"
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    stop "'$python' comes without venv; install it (Debian, Ubuntu: apt install python3-venv), or $another"
}

python_version() { "$1" -c 'import sys; print(*sys.version_info[:3], sep=".")'; }

# Prints why .venv has to be made again; fails if the existing one can be used.
why_anew() {
  if [ ! -e "$venv" ]; then
    echo "there is none yet"
  elif [ -e "$unfinished" ]; then
    echo "its making was interrupted"
  elif ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "the one that is there does not work"
  elif [ -n "${PYTHON:-}" ] && [ "$(python_version "$PYTHON")" != "$(python_version "$venv/bin/python")" ]; then
    echo "the one that is there is of Python $(python_version "$venv/bin/python")"
  elif [ -e "$made_for" ] && [ "$(cat "$made_for")" != "$repository" ]; then
    echo "the one that is there was made for $(cat "$made_for")"
  else
    return 1
  fi
}

make_venv() {
  local python="${PYTHON:-python3}"
  check_python
  if [ -e "$venv" ] && [ ! -e "$unfinished" ] && [ ! -e "$made_for" ]; then
    stop "$1, and it was not made by this script; move $venv away and run this again"
  fi
  echo "Making .venv with Python $(python_version "$python") ($1)"
  rm -rf "$venv"
  mkdir "$venv"
  touch "$unfinished"
  "$python" -m venv "$venv" || stop "no virtual environment could be made in $venv (see above)"
  echo "$repository" >"$made_for"
}

pip_install() {
  "$venv/bin/python" -m pip install -c constraints.txt --no-input --disable-pip-version-check "$@" </dev/null ||
    stop "pip could not install xrep (see above); correct that, or check the network (PIP_INDEX_URL can name another\
 index), and run this again (pip keeps what it has fetched)"
}

set_up() {
  local installed="$venv/.xrep-installed${1:+-$1}" state why
  state="$(cat setup.py pyproject.toml constraints.txt | cksum)"
  [ -z "${PYTHON:-}" ] || check_python
  if why="$(why_anew)"; then
    make_venv "$why"
  fi
  if [ "$(cat "$installed" 2>/dev/null)" != "$state" ]; then
    echo "Installing xrep${1:+ with the extra '$1'} into .venv at the versions of constraints.txt (some minutes the first time)"
    # First pip itself, at a version that resumes transfers, and setuptools: xrep is built with those of this
    # environment, because pip's own environment for building ignores constraints.txt.
    pip_install pip setuptools
    pip_install --no-build-isolation -e ".${1:+[$1]}"
    echo "$state" >"$installed"
    rm -f "$unfinished"
  fi
  export PATH="$venv/bin:$PATH"
  # More threads hardly speed up models as small as the demo's, and slow them down fourfold if another process is busy.
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
}
