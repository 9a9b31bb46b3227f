import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { DataTable } from "src/components/DataTable";
import { StateBadge } from "src/components/StateBadge";
import { airflowTaskPath, instanceLabel, instanceOf, type TaskRef } from "src/routes";

/** The instances of a mapped task, or of a task in a loop. */
export function Instances({ task, instances }: { task: TaskRef; instances: readonly Schemas["Instance"][] }) {
  return (
    <DataTable
      label="Instances of the task"
      rows={instances}
      rowKey={instanceOf}
      initialSort={{ column: "index", descending: false }}
      columns={[
        {
          key: "index",
          label: "Instance",
          fixed: true,
          value: ({ iteration, map_index }) => iteration * 1e6 + map_index,
          render: ({ name, ...position }) => (
            <AppLink to={airflowTaskPath({ ...task, ...position })}>
              {position.iteration < 0 && name !== null ? name : `${task.task_id}${instanceLabel(position, name)}`}
            </AppLink>
          ),
        },
        {
          key: "state",
          label: "State",
          value: ({ state }) => state,
          render: ({ state }) => <StateBadge state={state} />,
        },
      ]}
    />
  );
}
