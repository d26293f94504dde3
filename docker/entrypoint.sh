#!/bin/sh
# Runs a program, hands signals on to it, and ends with its exit status.
#
# With DQNFED_RESTART_PAUSE, a program that fails is followed by a pause of that many seconds, 10 seconds after its
# start at the earliest. The engine, which starts it again at once, then does so about every 5 to 10 seconds: it
# lengthens its own delay, up to a minute, only for containers that live less than 10 seconds.
set -u

STEADY=10  # seconds after which the engine takes a container for one that works
pause=${DQNFED_RESTART_PAUSE:-0}

if [ "$pause" = 0 ]; then
  exec "$@"
fi

child=
stopped=
# shellcheck disable=SC2317  # the trap calls it
stop() {
  stopped=yes
  if [ -n "$child" ]; then
    kill -TERM "$child" 2>/dev/null
  fi
}
trap stop TERM INT

began=$(date +%s)
"$@" &
child=$!
if [ -n "$stopped" ]; then  # the signal came before there was a child
  kill -TERM "$child"
fi
wait "$child"
status=$?
while kill -0 "$child" 2>/dev/null; do  # a signal ends `wait` before the program has ended
  wait "$child"
  status=$?
done

if [ "$status" -ne 0 ] && [ -z "$stopped" ]; then
  lived=$(($(date +%s) - began))
  if [ $((lived + pause)) -lt "$STEADY" ]; then
    pause=$((STEADY - lived))
  fi
  echo "dqnfed: $1 ended with status $status after $lived s; it is started again in $pause s" >&2
  while [ "$pause" -gt 0 ] && [ -z "$stopped" ]; do
    sleep 1
    pause=$((pause - 1))
  done
fi
exit "$status"
