#!/bin/sh
# Commits in a git repository, with everything flushed that git can flush: `setup|run|check DIR [ack]`. With `ack`, each is
# acknowledged: where the rename of a file is durable.
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
    first=${UNTORN_FIRST:-1}
    for n in $(seq "$first" $((first + ${UNTORN_ROUNDS:-10} - 1))); do
        echo "$n" >f
        git commit -qam "$n"
        [ -z "${3:-}" ] || echo "$n"
    done
    ;;
check)
    cd "$2/repository"
    # A killed git leaves locks; one of them may have its store, where git looks for names of branches.
    rm -rf .git/refs/heads/main.lock .git/refs/heads/main.lock.untorn
    git fsck --strict 2>&1
    found=$(git cat-file blob HEAD:f)
    [ -n "${3:-}" ] || exit 0
    git status --porcelain >/dev/null
    least=$(tail -n 1 "$UNTORN_ACKED")
    [ "$found" -ge "${least:-0}" ] || { echo "$least was acknowledged, $found was found"; exit 1; }
    ;;
esac
