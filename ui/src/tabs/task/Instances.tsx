import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { DataTable } from "src/components/DataTable";
import { StateBadge } from "src/components/StateBadge";
import { airflowTaskPath, type TaskRef } from "src/routes";

/** The instances of a mapped task. */
export function Instances({ task, instances }: { task: TaskRef; instances: readonly Schemas["Instance"][] }) {
  return (
    <DataTable
      label="Instances of the mapped task"
      rows={instances}
      rowKey={({ map_index }) => String(map_index)}
      initialSort={{ column: "index", descending: false }}
      columns={[
        {
          key: "index",
          label: "Instance",
          fixed: true,
          value: ({ map_index }) => map_index,
          render: ({ map_index, name }) => (
            <AppLink to={airflowTaskPath({ ...task, map_index })}>{name ?? `${task.task_id} [${map_index}]`}</AppLink>
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
