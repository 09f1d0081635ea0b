#!/bin/sh
# Linker of static programs for arm64, for which Rust has no position-independent ones: replaces the arguments for a fixed
# address. Adding `-static-pie` to these would link the startup code of programs that are not relocated.
# STATIC_PIE_COMPILER is the C compiler.
for argument; do
    shift
    case "$argument" in
    -static) set -- "$@" -static-pie ;;
    -no-pie) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "$STATIC_PIE_COMPILER" "$@"
