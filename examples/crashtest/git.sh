#!/bin/sh
# Commits in a git repository, with everything flushed that git can flush: `setup|run|check DIR`.
set -eu
export HOME="$2" GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
case $1 in
setup)
    git init -q -b main "$2/repository"
    cd "$2/repository"
    git config core.fsync all
    git config gc.auto 0
    echo 0 >f
    git add f
    git commit -qm 0
    ;;
run)
    cd "$2/repository"
    rm -f .git/index.lock .git/HEAD.lock .git/refs/heads/main.lock
    for n in $(seq 10); do
        echo "$n" >f
        git commit -qam "$n"
    done
    ;;
check)
    cd "$2/repository"
    git fsck --strict 2>&1
    git cat-file -e HEAD:f
    ;;
esac
