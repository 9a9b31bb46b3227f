import { Badge } from "@chakra-ui/react";
import { LuPause } from "react-icons/lu";
import type { Activity, Pipeline } from "src/api/pipelines";
import { AppLink, TwoLines } from "src/components";
import { HealthOf } from "src/pages/Pipelines/Health";
import { overviewPath } from "src/routes";

/** The pipeline, whether it is paused, and its health. */
export function NameCell({ pipeline, activity }: { pipeline: Pipeline; activity: Activity | undefined }) {
  const { dag_id, display_name, is_paused } = pipeline;
  return (
    <TwoLines
      first={
        <>
          <AppLink to={overviewPath(dag_id)} fontWeight="semibold" truncate title={dag_id}>
            {display_name}
          </AppLink>
          {is_paused && <Paused />}
        </>
      }
      second={<HealthOf pipeline={pipeline} activity={activity} />}
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
