import { Link } from "@chakra-ui/react";
import { LuExternalLink } from "react-icons/lu";
import { basePath } from "src/host";
import { instanceOf, type TaskRef } from "src/routes";

/** Opens the TensorBoard of a training, which the API server starts. */
export function TensorBoardLink({ task }: { task: TaskRef }) {
  const ids = [task.dag_id, task.run_id, task.task_id, instanceOf(task)].map(encodeURIComponent).join("/");
  return (
    <Link href={`${basePath()}hops/tensorboard/${ids}/`} target="_blank" rel="noreferrer" color="fg.info">
      TensorBoard <LuExternalLink aria-hidden size={12} />
    </Link>
  );
}
