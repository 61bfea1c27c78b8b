units=/mnt/run/systemd/system
cp /bin/gnomon-agent /mnt/run/gnomon/bin/
mkdir -p $units/multi-user.target.wants
cp /etc/gnomon-agent.service $units/
ln -s ../gnomon-agent.service $units/multi-user.target.wants/
unset units
