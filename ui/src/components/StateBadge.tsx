import { Badge, type BadgeProps } from "@chakra-ui/react";
import type { IconType } from "react-icons";
import {
  LuActivity,
  LuBan,
  LuCalendar,
  LuCheck,
  LuCircleDashed,
  LuCircleHelp,
  LuClock,
  LuFlaskConical,
  LuRepeat,
  LuRotateCcw,
  LuScissors,
  LuSkipForward,
  LuSquare,
  LuTriangleAlert,
  LuTrophy,
  LuX,
} from "react-icons/lu";

/** White on the `solid` of these palettes has a contrast below 4.5 to 1; on this darker shade of the same colour more. */
const DARKER: Record<string, string> = {
  running: "cyan.700",
  up_for_retry: "yellow.700",
  up_for_reschedule: "sky.700",
  upstream_failed: "amber.700",
  warning: "amber.700",
};

/** By state: the palette of the host's theme, and an icon. Airflow's own states have palettes of their names. */
const STATES: Record<string, { palette: string; icon: IconType }> = {
  success: { palette: "success", icon: LuCheck },
  failed: { palette: "failed", icon: LuX },
  running: { palette: "running", icon: LuActivity },
  queued: { palette: "queued", icon: LuClock },
  scheduled: { palette: "scheduled", icon: LuCalendar },
  deferred: { palette: "deferred", icon: LuClock },
  awaiting_input: { palette: "awaiting_input", icon: LuClock },
  skipped: { palette: "skipped", icon: LuSkipForward },
  up_for_retry: { palette: "up_for_retry", icon: LuRepeat },
  up_for_reschedule: { palette: "up_for_reschedule", icon: LuRepeat },
  upstream_failed: { palette: "upstream_failed", icon: LuTriangleAlert },
  restarting: { palette: "restarting", icon: LuRotateCcw },
  removed: { palette: "removed", icon: LuBan },
  // Training runs.
  FINISHED: { palette: "success", icon: LuCheck },
  FAILED: { palette: "failed", icon: LuX },
  KILLED: { palette: "failed", icon: LuBan },
  RUNNING: { palette: "running", icon: LuActivity },
  SCHEDULED: { palette: "scheduled", icon: LuCalendar },
  // Ours.
  complete: { palette: "success", icon: LuCheck },
  pruned: { palette: "skipped", icon: LuScissors },
  stopped: { palette: "gray", icon: LuSquare },
  killed: { palette: "failed", icon: LuBan },
  champion: { palette: "success", icon: LuTrophy },
  challenger: { palette: "deferred", icon: LuFlaskConical },
  canary: { palette: "deferred", icon: LuFlaskConical },
  blessed: { palette: "success", icon: LuCheck },
  "not blessed": { palette: "failed", icon: LuX },
  refused: { palette: "warning", icon: LuTriangleAlert },
  ok: { palette: "success", icon: LuCheck },
  stable: { palette: "success", icon: LuCheck },
  "not judged": { palette: "gray", icon: LuCircleDashed },
  insufficient: { palette: "gray", icon: LuCircleDashed },
  pipeline_fault: { palette: "failed", icon: LuTriangleAlert },
  drift: { palette: "warning", icon: LuTriangleAlert },
  broken: { palette: "failed", icon: LuX },
  warning: { palette: "warning", icon: LuTriangleAlert },
  unknown: { palette: "warning", icon: LuCircleHelp },
  waiting: { palette: "awaiting_input", icon: LuClock },
  fine: { palette: "success", icon: LuCheck },
  error: { palette: "failed", icon: LuX },
  retired: { palette: "gray", icon: LuBan },
  none: { palette: "none", icon: LuCircleDashed },
};

/** Words that the field knows, and a newcomer does not. */
const HELP: Record<string, string> = {
  champion: "The version that answers requests",
  challenger: "The version that is tried on a share of the requests, to replace the champion",
  blessed: "Its evaluation allows the model to be deployed",
  drift: "Data has moved away from what the model learnt from, its reference",
};

/** The word on the badge of a state. */
export const stateInWords = (state: string | null | undefined): string =>
  (state ?? "no state").replaceAll("_", " ").toLowerCase();

/** A state as the host shows it: colour, icon and word, so that none of them alone must be understood. */
export function StateBadge({ state, children, ...props }: BadgeProps & { state: string | null | undefined }) {
  const known = STATES[state ?? "none"] ?? { palette: "gray", icon: LuCircleDashed };
  return (
    <Badge
      borderRadius="full"
      colorPalette={known.palette}
      variant="solid"
      bg={DARKER[known.palette]}
      px={2}
      py={0.5}
      flexShrink={0}
      title={HELP[state ?? ""]}
      {...props}
    >
      <known.icon aria-hidden />
      {children ?? stateInWords(state)}
    </Badge>
  );
}
