import { chakra } from "@chakra-ui/react";
import { useSyncExternalStore } from "react";
import { formatRelative, formatSince, formatTime } from "src/format";
import { useTimezone } from "src/host";

const HOUR_MS = 3_600_000;
const TICK_MS = 15_000;
const listeners = new Set<() => void>();
let now = Date.now();
let timer: number | undefined;

function subscribe(changed: () => void): () => void {
  listeners.add(changed);
  timer ??= window.setInterval(() => {
    now = Date.now();
    for (const each of listeners) {
      each();
    }
  }, TICK_MS);
  return () => {
    listeners.delete(changed);
    if (listeners.size === 0) {
      window.clearInterval(timer);
      timer = undefined;
    }
  };
}

function currentTime(): number {
  // The timer rests while nobody looks.
  if (timer === undefined) {
    now = Date.now();
  }
  return now;
}

interface Props {
  at: string | number | Date | null | undefined;
  exact?: boolean;
  since?: boolean;
}

/**
 * How long ago, with the exact time in the user's zone on hover, and from an hour on beside it (in tables, which have no
 * room, on hover alone); or `since` when; the other way round where `exact`.
 */
export function Time({ at, exact = false, since = false }: Props) {
  const zone = useTimezone();
  const present = useSyncExternalStore(subscribe, currentTime, currentTime);
  if (at === null || at === undefined) {
    return <>–</>;
  }
  if (Number.isNaN(new Date(at).getTime())) {
    // What is said to be a time may be any text.
    return <>{String(at)}</>;
  }
  const inZone = formatTime(at, zone);
  const relative = since ? formatSince(at, present, zone) : formatRelative(at, present);
  return (
    <chakra.time
      dateTime={new Date(at).toISOString()}
      title={exact ? relative : `${inZone} (${zone})`}
      whiteSpace="nowrap"
      fontVariantNumeric="tabular-nums"
    >
      {exact ? inZone : relative}
      {!exact && !since && Math.abs(present - new Date(at).getTime()) >= HOUR_MS && (
        <span>, {inZone.slice(0, 16)}</span>
      )}
    </chakra.time>
  );
}
