import { Code, HStack } from "@chakra-ui/react";
import { type Column, CopyButton, column, DataTable, numberColumn, type Schemas, StateBadge, Time } from "airflow-hops";
import { formatRate } from "src/extensions/sharing/words";

type Organisation = Schemas["SharingOrganisation"];

const KEY_SHOWN = 12;

const COLUMNS: readonly Column<Organisation>[] = [
  { key: "name", label: "Organisation", fixed: true, value: (row) => row.organisation },
  column("key", "Key", {
    width: 170,
    render: (row) => (
      <HStack gap={1}>
        <Code size="sm" title={row.key}>
          {row.key.slice(0, KEY_SHOWN)}…
        </Code>
        <CopyButton text={row.key} label={`Copy the key of ${row.organisation}`} />
      </HStack>
    ),
  }),
  { key: "catalogue", label: "Catalogue", width: 220, value: (row) => row.url },
  column("read", "Read", {
    width: 170,
    value: (row) => row.read_at,
    render: (row) =>
      row.error ? (
        <StateBadge state="failed">not read</StateBadge>
      ) : (
        <Time at={row.read_at && row.read_at * 1000} exact />
      ),
  }),
  numberColumn("datasets", "Data sets", (row) => row.datasets),
  numberColumn("down", "From it", (row) => row.down_bytes_s, { format: formatRate }),
  numberColumn("up", "To it", (row) => row.up_bytes_s, { format: formatRate }),
  column("problems", "Rejected", {
    width: 200,
    value: (row) => row.rejected.length + row.dropped.length,
    render: (row) => {
      const all = [...row.rejected, ...row.dropped];
      return <span title={all.join("\n")}>{all[0] ?? ""}</span>;
    },
  }),
];

/** The organisations whose keys are trusted, and what came of their catalogues. */
export function OrganisationTable({ rows }: { rows: readonly Organisation[] }) {
  return (
    <DataTable
      label="Trusted organisations"
      name="organisation-"
      rows={rows}
      rowKey={(row) => row.organisation}
      columns={COLUMNS}
      maxHeight="30vh"
    />
  );
}
