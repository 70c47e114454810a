#!/bin/bash
# A SLURM cluster of two nodes on this machine, on which the chapters' sbatch files are tried:
#
#   bash appendix/slurm/cluster.sh start FOLDER      # then: source FOLDER/environment; sinfo
#   bash appendix/slurm/cluster.sh stop FOLDER
#
# FOLDER takes the state and the logs. Nothing outside it changes. Needs the programs of Debian's or
# Ubuntu's packages slurmctld, slurmd, slurm-client and munge, but none of their services. It is no model
# for a real cluster: no accounting, and each node has all cores of this machine.
set -euo pipefail
PATH=$PATH:/usr/sbin # where Debian has the servers
start() {
  mkdir -p "$folder" && cd "$folder" && mkdir state
  (umask 077 && head -c 128 /dev/urandom >munge.key)
  read -r -a ports < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(each.getsockname()[1] for each in sockets))')
  node="NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc --all)"
  # cred_expire: seconds that a job waits after a requeue. NoInAddrAny: listen on 127.0.0.1 only.
  cat >slurm.conf <<CONF
ClusterName=laptop
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdSpoolDir=$folder/spool-%n
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=node1 $node Port=${ports[1]}
NodeName=node2 $node Port=${ports[2]}
PartitionName=all Nodes=ALL Default=YES
CONF
  export SLURM_CONF=$folder/slurm.conf
  echo "export SLURM_CONF=$SLURM_CONF" >environment
  # Lightning's ranks meet at the name of the first node.
  getent hosts node1 >/dev/null || echo "export MASTER_ADDR=127.0.0.1" >>environment

  if { # their own output, and not this script's, which they would keep open
    munged --force --key-file=munge.key --socket=munge.socket --pid-file=munge.pid \
      --log-file=munge.log --seed-file=munge.seed &&
      slurmctld && slurmd -N node1 && slurmd -N node2
  } &>start.log; then
    for _ in {1..100}; do
      [[ $(sinfo --noheader --states=idle --format=%D 2>/dev/null) == 2 ]] && return
      sleep 0.2
    done
  fi
  cat start.log >&2
  stop
  echo "the cluster does not start: see the logs in $folder" >&2
  exit 1
}
stop() {
  cd "$folder" && export SLURM_CONF=$folder/slurm.conf
  scancel --quiet --state=PENDING --state=RUNNING --user="$(id -un)" || true
  for _ in {1..200}; do
    [[ $(squeue --noheader 2>/dev/null) ]] || break
    sleep 0.2
  done
  for name in slurmd-node1 slurmd-node2 slurmctld munge; do
    if [[ -f $name.pid ]]; then kill "$(<"$name.pid")" || true; fi
  done
}

[[ ${1:-} == @(start|stop) && ${2:-} ]] || { sed -n '2,9s/^# \?//p' "$0"; exit 2; }
folder=$(realpath -m "$2")
[[ $folder =~ ^[A-Za-z0-9/._-]+$ ]] || { echo "$folder: letters, digits and /._- only" >&2; exit 2; }
"$1"
