import { useMemo } from "react";
import type { Schemas } from "src/api/client";
import { ErrorAlert } from "src/components/ErrorAlert";
import { LoadingBox } from "src/components/Loading";
import { CurveGrid } from "src/pages/Runs/CurveGrid";
import { labelOf } from "src/pages/Runs/figures";
import { useCurves } from "src/pages/Runs/useCurves";

/** The curves of one run, live while it goes on. */
export function RunCurvesTab({ dagId, run }: { dagId: string; run: Schemas["TrainingRunDetail"] }) {
  const { curves, isPending, error } = useCurves(dagId, [run]);
  const label = labelOf(run);
  const drawn = useMemo(
    () => [{ run_id: run.run_id, start_time: run.start_time, label }],
    [run.run_id, run.start_time, label],
  );
  if (error !== null) {
    return <ErrorAlert error={error} />;
  }
  return isPending ? <LoadingBox /> : <CurveGrid curves={curves} runs={drawn} />;
}
