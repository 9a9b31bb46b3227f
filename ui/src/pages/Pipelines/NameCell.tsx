import { Badge, Text } from "@chakra-ui/react";
import { LuEye, LuPause } from "react-icons/lu";
import type { Pipeline } from "src/api/pipelines";
import { AppLink } from "src/components/AppLink";
import { StateBadge } from "src/components/StateBadge";
import { TwoLines } from "src/components/TwoLines";
import { plural } from "src/format";
import { airflowDagPath, airflowRunPath, overviewPath } from "src/routes";

/** The pipeline, whether it is paused, and the DAGs that watch its model with how they are. */
export function NameCell({ pipeline: { dag_id, display_name, is_paused, monitors, stages } }: { pipeline: Pipeline }) {
  return (
    <TwoLines
      first={
        <>
          <AppLink to={overviewPath(dag_id)} fontWeight="semibold" display="block" truncate title={dag_id}>
            {display_name}
          </AppLink>
          {is_paused && <Paused />}
        </>
      }
      second={
        monitors.length === 0 ? (
          <Text truncate title={stages.join(", ")}>
            {plural(stages.length, "stage")}
          </Text>
        ) : (
          monitors.map((monitor) => (
            <Text key={monitor.dag_id} truncate title={`monitored by ${monitor.dag_id}`}>
              <LuEye style={{ display: "inline", verticalAlign: "-2px" }} role="img" aria-label="monitored by" />{" "}
              <AppLink
                color="fg.muted"
                to={
                  monitor.last_run
                    ? airflowRunPath(monitor.dag_id, monitor.last_run.run_id)
                    : airflowDagPath(monitor.dag_id)
                }
              >
                {monitor.dag_id}
              </AppLink>{" "}
              {monitor.is_paused ? (
                <Paused />
              ) : (
                monitor.last_run &&
                monitor.last_run.state !== "success" && <StateBadge state={monitor.last_run.state} size="xs" py={0} />
              )}
            </Text>
          ))
        )
      }
    />
  );
}

/** That a DAG is paused. */
export function Paused() {
  return (
    <Badge size="xs" variant="outline" colorPalette="gray" flexShrink={0}>
      <LuPause aria-hidden /> paused
    </Badge>
  );
}
