import { Box, Code, Heading, HStack, Stack, Text } from "@chakra-ui/react";
import { keepPreviousData } from "@tanstack/react-query";
import {
  api,
  CodeBlock,
  Empty,
  LinesAlert,
  QueryView,
  type Schemas,
  StateBadge,
  Time,
  useQueryParam,
} from "airflow-hops";
import { DatasetDrawer } from "src/extensions/sharing/DatasetDrawer";
import { DatasetTable } from "src/extensions/sharing/DatasetTable";
import { OrganisationTable } from "src/extensions/sharing/OrganisationTable";
import { fullName } from "src/extensions/sharing/words";

type State = Schemas["SharingState"];

const ACTIVE_MS = 2_000;
const IDLE_MS = 15_000;

const START = `airflow hops runtime create --name sharing --with libtorrent
airflow hops datasets keys --create --organisation NAME
airflow hops datasets serve`;

const isActive = (state: State | undefined) =>
  state?.datasets.some(({ transfer }) => transfer && (transfer.down_bytes_s > 0 || transfer.up_bytes_s > 0)) ?? false;

/** What this organisation and others share: data sets, transfers, and whom we trust. */
export function SharingPage() {
  const [search] = useQueryParam("search");
  const state = api.useQuery(
    "get",
    "/api/sharing",
    { params: { query: { search } } },
    {
      placeholderData: keepPreviousData,
      refetchInterval: ({ state: { data } }) => (isActive(data) ? ACTIVE_MS : IDLE_MS),
    },
  );
  return (
    <QueryView query={state}>{(data) => (data.daemon === null ? <HowToStart /> : <Content data={data} />)}</QueryView>
  );
}

function Content({ data }: { data: State }) {
  const [opened, setOpened] = useQueryParam("dataset");
  const dataset = data.datasets.find((each) => fullName(each) === opened);
  const problems = data.organisations.flatMap((each) => [
    ...(each.error ? [`Catalogue of ${each.organisation}: ${each.error}`] : []),
    ...each.dropped,
  ]);
  return (
    <Stack gap={5}>
      <DaemonLine data={data} />
      <LinesAlert lines={[data.daemon?.error, ...problems]} />
      <Box>
        <Heading size="sm" as="h2" mb={2}>
          Data sets
        </Heading>
        <DatasetTable rows={data.datasets} opened={opened} onOpen={setOpened} />
      </Box>
      <Box>
        <Heading size="sm" as="h2" mb={2}>
          Trusted organisations
        </Heading>
        {data.organisations.length === 0 ? (
          <Empty title="No other organisation is trusted">
            Exchange keys, and run <Code>airflow hops datasets keys --trust NAME=KEY --catalogue ADDRESS</Code> on the
            daemon's machine.
          </Empty>
        ) : (
          <OrganisationTable rows={data.organisations} />
        )}
      </Box>
      {dataset && <DatasetDrawer dataset={dataset} onClose={() => setOpened("")} />}
    </Stack>
  );
}

function DaemonLine({ data: { daemon, is_alive } }: { data: State }) {
  if (daemon === null) {
    return null;
  }
  return (
    <HStack wrap="wrap" gap={3} fontSize="sm">
      <Text fontWeight="semibold">{daemon.organisation}</Text>
      <StateBadge state={is_alive ? "running" : "failed"}>
        {is_alive ? "daemon runs" : "daemon does not report"}
      </StateBadge>
      <Text color="fg.muted">
        on {daemon.host}, listens at {daemon.listen}
        {daemon.announced !== daemon.listen && `, announced as ${daemon.announced}`}; gives fetched data to others:{" "}
        {daemon.seeding.replaceAll("_", " ")}; reported at <Time at={daemon.at * 1000} exact />
      </Text>
    </HStack>
  );
}

function HowToStart() {
  return (
    <Empty title="No data sets are shared">
      Organisations that know each other's keys can share data sets, and fetch them from each other. To start, run on
      one machine:
      <Box mt={3}>
        <CodeBlock label="the commands" code={START} />
      </Box>
    </Empty>
  );
}
